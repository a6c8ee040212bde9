"""Constrained texts: the tokens that masking logits with llguidance alone gives, with any drafts, trees and company."""

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import llguidance.numpy
import pytest
from batches import alone, assert_as_alone, run_all
from llguidance import LLMatcher, LLTokenizer
from packages import quantize
from plug_ins import RECYCLING
from random_constraints import fits, random_constraint
from tiny_levels import gumbel_max, penalized_by_hand
from trained_levels import PROMPTS, TRAINED, write_noisy

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.round import CONSTRAINT
from mxconv.speculation.selection import Accept, Request, Selection
from mxconv.text.constraint import JSON_STYLE, MOST_BYTES, Constraint, ConstraintVocabulary
from mxconv.text.distribution import Penalties, Sampling, distribution

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "values": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 3},
        "is_open": {"enum": [True, None, "perhaps"]},
    },
    "required": ["name", "values", "is_open"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "regex": Constraint("regex", r"(self|cls)\.[a-z_]{3,9}\(([a-z]{1,3}, )*None\)"),
    "grammar": Constraint("grammar", 'start: "def " NAME "(self)" (": pass" | " -> None")\nNAME: /[a-z]{2,8}/'),
    "one text": Constraint("regex", "import zlib as compression, os"),
    "any object": Constraint("json_object"),
}
SELECTIONS = {
    "greedy": Selection(),
    "penalized": Selection(penalties=Penalties(1.3, 0.5)),
    "drawn": Selection(Sampling(0.9, top_k=40), seed=7),
}
NUM_TOKENS = 40


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("constrained")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", "prompt-lookup")
    quantize(TRAINED, folder / "package", codec=request.param, drafts=drafts, lm_head="quantize")
    return folder / "package"


@pytest.fixture(scope="module")
def loaded(package: Path) -> Iterator[LoadedPackage]:
    with LoadedPackage(package) as opened:
        yield opened


def vocabulary(loaded: LoadedPackage) -> ConstraintVocabulary:
    return ConstraintVocabulary(loaded.tokenizer, loaded.target.config.vocab_size)


def with_constraint(selection: Selection, loaded: LoadedPackage, constraint: Constraint) -> Selection:
    grammar = vocabulary(loaded).compile(constraint)
    return Selection(selection.sampling, selection.accept, selection.seed, selection.penalties, grammar)


def masked_by_hand(
    decoder: Decoder, loaded: LoadedPackage, prompt: list[int], constraint: Constraint, selection: Selection
) -> list[int]:
    """A token after the other, every one by a pass, and what may come by the library on its own."""
    size, ends = decoder.config.vocab_size, loaded.tokenizer.eos_token_ids
    guide = LLTokenizer(str(TRAINED / "tokenizer.json"), n_vocab=size, eos_token=sorted(ends))
    matcher, cache, answer, todo = LLMatcher(guide, grammar_of(constraint)), KVCache(decoder.config), [], list(prompt)
    mask = llguidance.numpy.allocate_token_bitmask(1, size)
    while len(answer) < NUM_TOKENS:
        row = penalized_by_hand(decoder.forward(todo, cache)[-1], selection, prompt, answer)
        llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
        llguidance.numpy.apply_token_bitmask_inplace(row[None], mask)
        if selection.sampling is None:
            todo = [int(row.argmax())]
        else:
            todo = [gumbel_max(distribution(row, selection.sampling), selection.seed, len(prompt) + len(answer))]
        answer += todo
        if todo[0] in ends:
            break
        assert matcher.consume_token(todo[0])
    return answer


def grammar_of(constraint: Constraint) -> str:
    if constraint.kind in ("regex", "grammar"):
        return getattr(LLMatcher, {"regex": "grammar_from_regex", "grammar": "grammar_from_lark"}[constraint.kind])(
            constraint.text
        )
    return LLMatcher.grammar_from_json_schema(constraint.text or '{"type": "object"}', overrides=JSON_STYLE)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("how", SELECTIONS)
def test_tokens_are_those_of_masked_logits(loaded: LoadedPackage, name: str, how: str) -> None:
    """And what is certain takes no pass of its own."""
    constraint, ids = CONSTRAINTS[name], loaded.tokenizer.encode(PROMPTS[1])
    expected = masked_by_hand(loaded.target, loaded, ids, constraint, SELECTIONS[how])
    selection, ends = with_constraint(SELECTIONS[how], loaded, constraint), loaded.tokenizer.eos_token_ids
    levels = {level.name: level for level in loaded.levels}
    target, draft, noisy, *look_ups = loaded.levels
    assert len(look_ups) == 1 and len(levels) == 4
    for chosen, tree in (
        ([target], "chain"),
        ([target, draft], "chain"),
        ([target, draft], 12),
        ([target, noisy, *look_ups], 12),
        ([target, *look_ups], 12),
        (loaded.levels, 12),
    ):
        lengths = [4] * (len(chosen) - 1)
        hierarchy = Hierarchy(chosen, lengths, [0.0] * len(lengths), tree)  # type: ignore[arg-type]
        generation = hierarchy.generate(ids, NUM_TOKENS, ends, selection=selection)
        assert generation.token_ids == expected, [level.name for level in chosen]
        if name == "one text" and len(chosen) == 1:
            assert generation.trace.num_rounds <= 3  # the prompt's, and all the rest in as many rows as fit
    adaptive = Hierarchy(loaded.levels, "auto").generate(ids, NUM_TOKENS, ends, selection=selection)
    assert adaptive.token_ids == expected
    text = loaded.tokenizer.decode([token for token in expected if token not in ends])
    if expected[-1] in ends:
        check(constraint, text)


def check(constraint: Constraint, text: str) -> None:
    if constraint.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(constraint.text))
    elif constraint.kind == "json_object":
        assert isinstance(json.loads(text), dict)
    elif constraint.kind == "regex":
        assert re.fullmatch(constraint.text, text)
    else:
        assert re.fullmatch(r"def [a-z]{2,8}\(self\)(: pass| -> None)", text)


@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_rejection_draws_what_the_constraint_allows(loaded: LoadedPackage, accept: Accept) -> None:
    constraint, ids = CONSTRAINTS["schema"], loaded.tokenizer.encode(PROMPTS[0])
    for seed in range(6):
        selection = with_constraint(Selection(Sampling(1.0), accept, seed), loaded, constraint)
        hierarchy = Hierarchy(loaded.levels[:2], [3], [0.0], 8)
        found = hierarchy.generate(ids, 60, loaded.tokenizer.eos_token_ids, selection=selection).token_ids
        text = loaded.tokenizer.decode([token for token in found if token not in loaded.tokenizer.eos_token_ids])
        if found[-1] in loaded.tokenizer.eos_token_ids:
            check(constraint, text)


def test_what_was_certain_is_named(loaded: LoadedPackage) -> None:
    selection = with_constraint(Selection(), loaded, CONSTRAINTS["one text"])
    ids = loaded.tokenizer.encode(PROMPTS[0])
    target = Hierarchy(loaded.levels[:1])
    request = Request(ids, 20, loaded.tokenizer.eos_token_ids, selection)
    decoding = target.decoding(request, target.begin(), request.acceptance())
    named = []
    while decoding.ending is None:
        named += decoding.round().guessed_by
    assert named.count(CONSTRAINT) > len(named) / 2 and set(named) == {CONSTRAINT, None}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "[1]", "json_schema: no JSON object; a JSON Schema is required"),
        ("json_schema", "[" * 50_000, "json_schema: no JSON object"),
        ("json_schema", '{"type": "strin"}', "json_schema: .*strin.*; what llguidance supports is required"),
        ("json_schema", '{"not": {"type": "string"}}', "json_schema: #/not: .*; a schema without not"),
        ("json_schema", '{"items": ' * 300 + "{}" + "}" * 300, "json_schema: .*recursion limit"),
        ("json_schema", '{"$ref": "#"}', "json_schema: .*NoExtension"),
        ("json_schema", '{"$ref": "http://127.0.0.1:9/schema.json"}', "json_schema: .*not present"),
        ("regex", "(a", "regex: .*; what llguidance supports is required"),
        ("regex", "a" * (MOST_BYTES + 1), f"regex: {MOST_BYTES + 1:,} bytes; at most {MOST_BYTES:,} are taken"),
        ("grammar", "start: nothing", "grammar: .*nothing"),
        ("grammar", "", "grammar: "),
    ],
)
def test_what_cannot_be_followed_is_refused_before_a_token(
    loaded: LoadedPackage, kind: Any, text: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        vocabulary(loaded).compile(Constraint(kind, text))


NUM_REQUESTS = round(12 * float(os.environ.get("MXCONV_TEST_SCALE", "1")))
MOST_TOKENS = 48
MANY_SELECTIONS = (
    Selection(),
    Selection(penalties=Penalties(1.2, 0.4)),
    Selection(Sampling(0.9, top_k=40), seed=5),
    Selection(Sampling(1.6), seed=8),
)


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    """Its own low-bit draft, another model, and what recycles and looks back a little."""
    folder: Path = tmp_path_factory.mktemp("random")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}",)
    quantize(TRAINED, folder / "package", codec=request.param, drafts=drafts, lm_head="quantize")
    with LoadedPackage(
        folder / "package", drafts=[parse_draft(text) for text in ("streaming,sink=1,window=5", RECYCLING)]
    ) as opened:
        yield opened


def requests_of(many: LoadedPackage) -> tuple[list[Request], int]:
    """So many requests that can be served, and how many constraints are refused among them."""
    vocabulary = ConstraintVocabulary(many.tokenizer, many.target.config.vocab_size)
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
        selection = replace(rng.choice(MANY_SELECTIONS), seed=seed, constraint=grammar)
        ids = many.tokenizer.encode(rng.choice(PROMPTS))
        made.append(Request(ids, MOST_TOKENS, many.tokenizer.eos_token_ids, selection))
    return made, num_refused


def test_random_constraints_change_nothing_but_what_they_say(
    many: LoadedPackage, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, num_refused = requests_of(many)
    assert num_refused < len(requests)
    known = [alone(many.levels[0], request) for request in requests]
    target, *drafts = sorted(many.levels, key=lambda level: level.decoder is None)  # look-ups last
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
                text = many.tokenizer.decode(generation.token_ids[:-1])
                assert fits(grammar.constraint, text), (grammar.constraint, text)
    assert num_ended > NUM_REQUESTS / 4 and num_given_up > NUM_REQUESTS / 12
    if NUM_REQUESTS > 12:
        with capsys.disabled():
            counts = {"requests": len(requests), "refused": num_refused, "ended": num_ended, "given up": num_given_up}
            print(counts)
