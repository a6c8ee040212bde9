"""Many requests, alone and at several loads, with everything that an engine does to them: the same bits."""

from pathlib import Path

import numpy as np
import pytest
from batches import alone, assert_as_alone, position_bytes, run_all
from packages import quantize
from trained_levels import write_noisy

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.kv_pages import PAGE
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

NUM_REQUESTS = 16


def requests_of(vocab_size: int, random: np.random.Generator) -> list[Request]:
    """Three of four begin alike; every second one is drawn; some are long."""
    beginning = random.integers(3, vocab_size, PAGE + 5).tolist()
    made = []
    for seed in range(NUM_REQUESTS):
        own = random.integers(3, vocab_size, int(random.integers(1, 12))).tolist()
        prompt = own if seed % 4 == 3 else [*beginning, *own]
        selection = GREEDY if seed % 2 else Selection(Sampling(0.9, top_p=0.95), seed=seed)
        made.append(Request(prompt, 120 if seed % 5 == 0 else int(random.integers(1, 12)), (), selection))
    return made


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])  # of the self-draft: the target is plain BF16, or inside BSFP
def test_requests_are_what_they_are_alone_at_any_load(tmp_path: Path, codec: str) -> None:
    quantize(write_noisy(tmp_path / "source", 0.0), tmp_path / "package", codec=codec)
    drafts = [parse_draft("prompt-lookup")]
    random, num_set_back, num_given_up = np.random.default_rng(1), 0, 0
    with LoadedPackage(tmp_path / "package", ["target", codec], drafts=drafts) as loaded:
        hierarchy = Hierarchy(loaded.levels, [4, 6], [0.0, 0.0], 12)
        every = requests_of(hierarchy.vocab_size, random)
        known = [alone(loaded.levels[0], request) for request in every]
        for at_a_time in (1, 5, 16):
            order = random.permutation(NUM_REQUESTS).tolist()
            requests = [every[number] for number in order]
            limits = np.where(random.random(NUM_REQUESTS) < 0.3, random.integers(0, 12, NUM_REQUESTS), 1000)
            engine = Engine(hierarchy, at_a_time, 7 * PAGE * position_bytes(hierarchy))
            sequences, heard = run_all(engine, requests, lambda number, done, limits=limits: done >= limits[number])
            assert_as_alone(loaded.levels[0], requests, sequences, heard, [known[number] for number in order])
            assert heard.most_running == 1 if at_a_time == 1 else heard.most_running > 1
            assert len(engine._budget.pool_of(loaded.levels[0].decoder).prefixes) > 0
            num_set_back += heard.num_set_back
            num_given_up += sum(sequence.generation.ending == "interrupted" for sequence in sequences)
    assert num_set_back > 0 and num_given_up > 0
