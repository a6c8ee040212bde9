"""Random constraints, many at a time: bit for bit plain constrained decoding alone, and every text fits."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from batches import alone, assert_as_alone, run_all
from packages import quantize
from plug_ins import RECYCLING
from random_constraints import fits, random_constraint
from trained_levels import PROMPTS, TRAINED, write_noisy

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request, Selection
from mxconv.text.constraint import ConstraintVocabulary
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

NUM_REQUESTS = round(12 * float(os.environ.get("MXCONV_TEST_SCALE", "1")))
NUM_TOKENS = 48
SELECTIONS = (
    Selection(),
    Selection(penalties=Penalties(1.2, 0.4)),
    Selection(Sampling(0.9, top_k=40), seed=5),
    Selection(Sampling(1.6), seed=8),
)


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    """Its own low-bit draft, another model, and what recycles and looks back a little."""
    folder: Path = tmp_path_factory.mktemp("random")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}",)
    quantize(TRAINED, folder / "package", codec=request.param, drafts=drafts, lm_head="quantize")
    with LoadedPackage(
        folder / "package", drafts=[parse_draft(text) for text in ("streaming,sink=1,window=5", RECYCLING)]
    ) as opened:
        yield opened


def requests_of(loaded: LoadedPackage) -> tuple[list[Request], int]:
    """So many requests that can be served, and how many constraints are refused among them."""
    vocabulary = ConstraintVocabulary(loaded.tokenizer, loaded.target.config.vocab_size)
    made: list[Request] = []
    seed = num_refused = 0
    while len(made) < NUM_REQUESTS:
        rng, seed = random.Random(seed), seed + 1
        try:
            grammar = vocabulary.compile(random_constraint(seed))
        except ModelError as error:
            assert "; " in str(error) and "required" in str(error)
            num_refused += 1
            continue
        selection = replace(rng.choice(SELECTIONS), seed=seed, constraint=grammar)
        ids = loaded.tokenizer.encode(rng.choice(PROMPTS))
        made.append(Request(ids, NUM_TOKENS, loaded.tokenizer.eos_token_ids, selection))
    return made, num_refused


def test_random_constraints_change_nothing_but_what_they_say(
    loaded: LoadedPackage, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, num_refused = requests_of(loaded)
    assert num_refused < len(requests)
    known = [alone(loaded.levels[0], request) for request in requests]
    target, *drafts = sorted(loaded.levels, key=lambda level: level.decoder is None)  # look-ups last
    assert len(drafts) == 4
    num_ended = num_given_up = 0
    for number, (levels, tree, at_a_time) in enumerate(
        [(drafts, 12, 16), (drafts[:1], "chain", 5), (drafts[1:3], 8, 1), (drafts[2:], "chain", 9), ([], "chain", 3)]
    ):
        part = slice(None) if number == 0 else slice(number - 1, None, 4)
        hierarchy = Hierarchy([target, *levels], [4] * len(levels), [0.0] * len(levels), tree)  # type: ignore[arg-type]
        sequences, heard = run_all(
            Engine(hierarchy, at_a_time), requests[part], lambda one, count: one % 4 == 2 and count > 1
        )
        assert_as_alone(target, requests[part], sequences, heard, known[part])
        num_given_up += sum(sequence.generation.ending == "interrupted" for sequence in sequences)
        for request, sequence in zip(requests[part], sequences, strict=True):
            grammar, generation = request.selection.constraint, sequence.generation
            if generation.ending == "stop" and grammar is not None:
                num_ended += 1
                text = loaded.tokenizer.decode(generation.token_ids[:-1])
                assert fits(grammar.constraint, text), (grammar.constraint, text)
    assert num_ended > NUM_REQUESTS / 4 and num_given_up > NUM_REQUESTS / 12
    if NUM_REQUESTS > 12:
        with capsys.disabled():
            counts = {"requests": len(requests), "refused": num_refused, "ended": num_ended, "given up": num_given_up}
            print(counts)
