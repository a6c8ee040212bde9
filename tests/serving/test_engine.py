"""Requests beside each other: every token and every bit as alone, whatever joins, leaves, fails or is set back."""

from collections.abc import Sequence as Listed
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from batches import alone, assert_as_alone, position_bytes, random_prompt, run_all
from hypothesis import given, settings
from hypothesis import strategies as st
from plug_ins import RECYCLING
from tiny_levels import FORMATS, VOCAB_SIZE, Decoded, decoder_of, look_up, noisy_copy, self_draft, target_level

from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.errors import ModelError
from mxconv.serving import llm_engine as scheduler_module
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import GREEDY, Accept, Request, Selection
from mxconv.text.distribution import Sampling

SIZES = {"max_position_embeddings": 320}


def chain_of(name: str, dtype: str = "BF16") -> list[LoadedLevel]:
    """The target and drafts of some kinds."""
    drafts = {
        "plain": [],
        "self-draft": [self_draft(0, FORMATS[dtype], **SIZES)],
        "models": [self_draft(0, FORMATS[dtype], **SIZES), noisy_copy(0, 0.3, **SIZES)],
        "look-ups": [look_up(RECYCLING)],
        "all": [
            self_draft(0, FORMATS[dtype], **SIZES),
            noisy_copy(0, 0.3, **SIZES),
            look_up("prompt-lookup"),
            look_up(RECYCLING),
        ],
    }
    return [target_level(0, FORMATS[dtype], **SIZES), *drafts[name]]


HIERARCHIES: dict[str, tuple[str, str, Any, Any]] = {
    "plain": ("plain", "BF16", None, "chain"),
    "a chain of four": ("self-draft", "F16", [4], "chain"),
    "a tree of twelve": ("self-draft", "BF16", [4], 12),
    "models, trees": ("models", "BF16", [4, 3], 12),
    "look-ups, trees": ("look-ups", "BF16", [4], 16),
    "all, what pays": ("all", "F16", "auto", "auto"),
}


def hierarchy_of(name: str) -> Hierarchy:
    chain, dtype, lengths, tree = HIERARCHIES[name]
    levels = chain_of(chain, dtype)
    return Hierarchy(levels, lengths, None if lengths == "auto" or len(levels) == 1 else [0.0], tree)


def requests_of(count: int, seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        sampling = None if number % 2 else Sampling(0.9, top_p=0.95)
        made.append(
            Request(
                random_prompt(random, VOCAB_SIZE, int(random.choice([1, 6, 30, 150]))),
                int(random.integers(1, 24)),
                [3] if number % 3 == 0 else [],
                Selection(sampling, seed=number),
            )
        )
    return made


@cache
def known_of(dtype: str, count: int, seed: int) -> list[Decoded]:
    """What the target makes of requests alone, whatever drafts for it."""
    target = target_level(0, FORMATS[dtype], **SIZES)
    return [alone(target, request) for request in requests_of(count, seed)]


@pytest.mark.parametrize(
    ("name", "at_a_time"),
    [*((name, 5) for name in HIERARCHIES), ("plain", 1), ("models, trees", 2), ("all, what pays", 16)],
)
def test_every_text_is_what_it_would_be_alone(name: str, at_a_time: int) -> None:
    hierarchy, requests = hierarchy_of(name), requests_of(16, 5)
    sequences, heard = run_all(Engine(hierarchy, at_a_time), requests)
    assert_as_alone(hierarchy.levels[0], requests, sequences, heard, known_of(HIERARCHIES[name][1], 16, 5))
    assert heard.most_running == at_a_time or at_a_time == 16
    if name not in ("plain", "all, what pays"):
        assert len(heard.guessed_by) > 1 and None in heard.guessed_by
    assert heard.guessed_by <= {None, *(level.name for level in hierarchy.levels[1:])}
    for sequence in sequences:
        trace = sequence.generation.trace
        assert trace.num_rounds == trace.statistics[0].num_forwards
        assert 0 < sequence.generation.prompt_seconds <= sequence.generation.seconds


@settings(max_examples=5)
@given(
    st.sampled_from(sorted(HIERARCHIES)),
    st.integers(1, 16),
    st.permutations(range(10)),
    st.integers(0, 2**32),
    st.sampled_from([None, 1.0, 1.7, 3.0]),
)
def test_order_cancellations_and_set_backs_change_nothing(
    name: str, at_a_time: int, order: Listed[int], seed: int, room: float | None
) -> None:
    hierarchy, random = hierarchy_of(name), np.random.default_rng(seed)
    every = requests_of(10, 7)
    requests = [every[number] for number in order]
    limits = random.integers(0, 60, len(requests))
    # so much room as the longest of them needs alone, times some
    kv_bytes = None if room is None else int(room * 256 * position_bytes(hierarchy))
    engine = Engine(hierarchy, at_a_time, kv_bytes)
    sequences, heard = run_all(engine, requests, lambda number, done: done >= limits[number])
    known = known_of(HIERARCHIES[name][1], 10, 7)
    assert_as_alone(hierarchy.levels[0], requests, sequences, heard, [known[number] for number in order])


@pytest.mark.parametrize("name", ["plain", "all, what pays"])
def test_the_youngest_are_set_back_where_caches_are_full_and_come_to_the_same_end(name: str) -> None:
    hierarchy = hierarchy_of(name)
    random = np.random.default_rng(1)
    requests = [
        Request(random_prompt(random, VOCAB_SIZE, 20), 120, (), Selection(Sampling(1.0), seed=n)) for n in range(4)
    ]
    engine = Engine(hierarchy, 4, 384 * position_bytes(hierarchy))  # each grows from 2 pages to 3
    sequences, heard = run_all(engine, requests)
    assert heard.num_set_back > 0
    assert_as_alone(hierarchy.levels[0], requests, sequences, heard)


def test_a_text_that_outgrows_the_budget_alone_ends_with_an_error_and_what_it_has() -> None:
    hierarchy = hierarchy_of("plain")
    engine = Engine(hierarchy, 2, 128 * position_bytes(hierarchy))
    with pytest.raises(ModelError, match=r"KV cache: .* bytes for one sequence of 150 tokens; at most .* --kv-bytes"):
        engine.submit(Request([1] * 150, 4))
    long, short = Request([1, 2], 100), Request([3, 4], 5)
    (first, second), heard = run_all(engine, [long, short])
    assert isinstance(first.error, ModelError) and "KV cache" in str(first.error)
    assert first.generation.ending == "error" and len(first.generation.token_ids) > 30
    assert second.error is None and len(heard.tokens[1]) == 5


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 4), "prompt: 0 tokens"),
        (Request([1, VOCAB_SIZE], 4), f"prompt: token id {VOCAB_SIZE}; ids from 0 to {VOCAB_SIZE - 1}"),
        (Request([1] * 321, 4), "prompt: 321 tokens; the target has 320 positions"),
    ],
)
def test_bad_requests_are_refused_at_once(request_: Request, message: str) -> None:
    engine = Engine(hierarchy_of("plain"))
    with pytest.raises(ModelError, match=message):
        engine.submit(request_)
    assert engine.is_idle and engine.step() == []


def test_prompts_enter_in_pieces_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "PROMPT_ROWS", 16)
    hierarchy = hierarchy_of("models, trees")
    engine = Engine(hierarchy, 4)
    requests = [Request([1, 2, 3], 60), Request([5, 7] * 100, 8), Request([2, 9] * 60, 8)]
    first = engine.submit(requests[0])
    heard: dict[int, list[int]] = {}
    for _ in range(2):
        engine.step()
    others = [engine.submit(request) for request in requests[1:]]
    for _ in range(5):
        for each in engine.step():
            heard.setdefault(id(each.sequence), []).append(each.token)
    assert list(heard) == [id(first)] and all(not other.generation.token_ids for other in others)
    while not engine.is_idle:
        engine.step()
    for request, sequence in zip(requests, [first, *others], strict=True):
        plain = Hierarchy(hierarchy.levels[:1]).generate(request.prompt, request.max_new_tokens)
        assert sequence.generation.token_ids == plain.token_ids


def test_what_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a pass reaches the sequence that caused it."""
    real = Decoder.forward_batch

    def failing(self: Decoder, sequences: Listed[SequenceRows]) -> list[np.ndarray]:
        if any(list(rows.token_ids[:3]) == [13, 13, 13] for rows in sequences):
            raise ModelError("three times 13 is unlucky")
        return real(self, sequences)

    hierarchy = hierarchy_of("models, trees")
    monkeypatch.setattr(Decoder, "forward_batch", failing)
    requests = [Request([1, 2], 4), Request([13, 13, 13], 4), Request([4, 5], 4)]
    sequences, heard = run_all(Engine(hierarchy), requests)
    monkeypatch.undo()
    assert str(sequences[1].error) == "three times 13 is unlucky" and heard.tokens[1] == []
    plain = Hierarchy(hierarchy.levels[:1])
    for number in (0, 2):
        assert heard.tokens[number] == plain.generate(requests[number].prompt, 4).token_ids


def test_a_defect_inside_one_round_ends_that_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    hierarchy = hierarchy_of("plain")
    engine = Engine(hierarchy)
    good, bad = engine.submit(Request([1], 3)), engine.submit(Request([2], 3))
    monkeypatch.setattr(bad, "go_on", lambda _: 1 // 0)
    while not engine.is_idle:
        engine.step()
    assert good.error is None and len(good.generation.token_ids) == 3
    assert bad.is_done and "ZeroDivisionError" in str(bad.error)


@pytest.mark.parametrize(
    ("name", "moment"), [("plain", 1), ("plain", 7), ("all, what pays", 2), ("models, trees", 7), ("models, trees", 12)]
)
def test_an_interrupt_leaves_everything_whole(name: str, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be answered by going on: no token is lost or doubled."""
    real, count = Decoder.forward_batch, 0

    def interrupted(self: Decoder, sequences: Listed[SequenceRows]) -> list[np.ndarray]:
        nonlocal count
        count += 1
        logits = real(self, sequences)
        if count == moment:
            raise KeyboardInterrupt
        return logits

    monkeypatch.setattr(Decoder, "forward_batch", interrupted)
    hierarchy, requests = hierarchy_of(name), requests_of(4, 3)
    engine = Engine(hierarchy)
    sequences = [engine.submit(request) for request in requests]
    said: dict[int, list[int]] = {id(sequence): [] for sequence in sequences}
    num_interrupts = 0
    while not engine.is_idle:
        try:
            for each in engine.step():
                said[id(each.sequence)].append(each.token)
        except KeyboardInterrupt:
            num_interrupts += 1
    assert num_interrupts == 1
    for known, sequence in zip(known_of(HIERARCHIES[name][1], 4, 3), sequences, strict=True):
        assert said[id(sequence)] == sequence.generation.token_ids == known.token_ids


def test_a_cancelled_sequence_is_done_at_once_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "PROMPT_ROWS", 16)
    engine = Engine(hierarchy_of("models, trees"), 2)
    running, inside, waiting = (engine.submit(Request(prompt, 50)) for prompt in ([1], [2, 3] * 50, [4]))
    engine.step()
    assert inside.wanted is not None and engine.waiting == [waiting]
    for sequence in (inside, waiting, running, running):
        engine.cancel(sequence)
        assert sequence.is_done and sequence.wanted is None
        assert sequence.generation.ending == "interrupted" and sequence.error is None
    assert engine.is_idle and engine.step() == []


def test_rejection_sampling_runs_beside_others() -> None:
    """Its tokens hang on what is proposed, so they are only what the target may say."""
    hierarchy = hierarchy_of("models, trees")
    rejecting, blocks = (Selection(Sampling(0.8), accept, 4) for accept in get_args(Accept)[1:])
    requests = [Request([1, 2, 3], 20, (), selection) for selection in (rejecting, GREEDY, blocks)]
    sequences, heard = run_all(Engine(hierarchy), requests)
    assert [len(sequence.generation.token_ids) for sequence in sequences] == [20, 20, 20]
    assert heard.tokens[1] == Hierarchy(hierarchy.levels[:1]).generate([1, 2, 3], 20).token_ids


def test_a_beginning_that_texts_share_is_evaluated_and_kept_once() -> None:
    """Where one text has room, two that begin alike have it too; and each says what it says alone."""
    hierarchy = hierarchy_of("plain")
    system = random_prompt(np.random.default_rng(5), VOCAB_SIZE, 2 * PAGE + 3)
    requests = [Request([*system, n, n + 1], 9, (), GREEDY) for n in range(4)]
    engine = Engine(hierarchy, 4, 8 * PAGE * position_bytes(hierarchy))  # two alone, and to grow in, are ten
    (first,), heard = run_all(engine, requests[:1])
    assert_as_alone(hierarchy.levels[0], requests[:1], [first], heard)
    sequences, heard = run_all(engine, requests)
    assert_as_alone(hierarchy.levels[0], requests, sequences, heard)
    assert heard.num_set_back == 0 and heard.most_running > 1
    pool = engine._budget.pool_of(decoder_of(hierarchy.levels[0]))
    assert (pool.num_used, pool.num_kept) == (2, 2)  # nothing but the beginning is left, for others
    first_passes = [counted_rows(decoder_of(hierarchy.levels[0]), engine, [each])[0][0] for each in requests[:2]]
    assert first_passes == [2 + 3, 2 + 3]  # rows of the prompt that no page holds


def counted_rows(decoder: Decoder, engine: Engine, requests: Listed[Request]) -> tuple[list[int], Any]:
    """Rows of every pass of a decoder while requests are answered, and what `run_all` returns."""
    rows: list[int] = []
    forward = decoder.forward_batch

    def count(sequences: Listed[SequenceRows]) -> list[np.ndarray]:
        rows.append(sum(each.num_rows for each in sequences))
        return forward(sequences)

    decoder.forward_batch = count  # type: ignore[method-assign]
    try:
        return rows, run_all(engine, requests)
    finally:
        del decoder.forward_batch
