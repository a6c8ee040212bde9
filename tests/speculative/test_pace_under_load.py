"""Speculation by load: never far from the best fixed length, never far below plain decoding, at any number of texts."""

from itertools import pairwise

import pytest
from simulated_batch import SimulatedBatch, roofline, texts

from mxconv.speculative.pacing.adaptive_pace import AdaptivePace
from mxconv.speculative.pacing.load import JointPass, Load
from mxconv.speculative.pacing.pace import PLAIN, Choice, Outcome
from mxconv.speculative.pacing.shared_seconds import SharedSeconds

COUNTS = (1, 2, 4, 8, 16)
MACHINES = {"memory": roofline(256), "knee at 16": roofline(16), "knee at 4": roofline(4), "compute": roofline(1)}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("num_texts", COUNTS)
@pytest.mark.parametrize(("acceptance", "share"), [(0.0, 0.3), (0.3, 0.5), (0.6, 0.3), (0.9, 0.1), (0.5, 0.9)])
def test_it_is_never_slower_than_plain_decoding(machine: str, num_texts: int, acceptance: float, share: float) -> None:
    batch = SimulatedBatch(MACHINES[machine], share, acceptance, noise=0.05)
    rate = batch.run(texts(AdaptivePace(1), num_texts), 256 if num_texts > 1 else 512)
    assert rate > 0.97


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("num_texts", COUNTS)
def test_it_is_nearly_as_fast_as_the_best_fixed_length(machine: str, num_texts: int) -> None:
    batch = SimulatedBatch(MACHINES[machine], 0.15, 0.8)
    pace = AdaptivePace(1)
    batch.run(texts(pace, num_texts), 60)
    rate = batch.run(texts(pace, num_texts), 120)
    best, _ = batch.best(num_texts)
    assert rate > 0.9 * best


def test_fewer_tokens_are_asked_for_where_more_texts_make_rows_dear_and_none_in_the_end() -> None:
    asked = []
    for num_texts in COUNTS:
        batch = SimulatedBatch(MACHINES["knee at 16"], 0.15, 0.8)
        pace = AdaptivePace(1)
        batch.run(texts(pace, num_texts), 60)
        batch.asked.clear()
        batch.run(texts(pace, num_texts), 100)
        asked.append(sum(batch.asked) / len(batch.asked))
    assert all(later < earlier + 0.5 for earlier, later in pairwise(asked))
    assert min(asked[:2]) > 3 and asked[3] < 2 and asked[4] < 0.3


def test_a_new_load_is_priced_at_once() -> None:
    """What was learned at one load is not carried over to another."""
    pace, batch = AdaptivePace(1), SimulatedBatch(MACHINES["knee at 16"], 0.15, 0.8)
    for num_texts in COUNTS:
        batch.run(texts(pace, num_texts), 40)  # every load was there once
    for num_texts in (16, 1, 8, 2, 16):
        rate = batch.run(texts(pace, num_texts), 12)
        best, _ = batch.best(num_texts)
        assert rate > 0.8 * best and rate > 0.9


def test_prompts_in_a_pass_make_further_rows_dear() -> None:
    pace, batch = AdaptivePace(1), SimulatedBatch(MACHINES["knee at 16"], 0.15, 0.8)
    batch.run(texts(pace, 2), 60)
    rate = batch.run(texts(pace, 2), 40, other_rows=128)
    assert rate > 0.97
    batch.asked.clear()
    batch.run(texts(pace, 2), 20)
    assert sum(batch.asked) > 0


def test_at_a_load_that_is_new_a_plain_round_comes_first() -> None:
    pace = AdaptivePace(1)
    pace.learn(PLAIN, Outcome(0, 0, 1, 0.0, 1.0))
    assert pace.choose(10).num_tokens > 0
    load = Load(6)
    assert pace.choose(10, load) == PLAIN
    for _ in range(6):
        pace.learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.2, load=load, joint=JointPass(1, 6, 1.2), draft_sharers=6))
    assert pace.choose(10, load).num_tokens > 0


def test_texts_have_missed_different_numbers_of_tokens() -> None:
    """A prompt that comes in does not make a draft dear for texts that it follows."""
    pace = AdaptivePace(1)
    old, new = pace.of_text(), pace.of_text()
    for _ in range(30):
        old.learn(PLAIN, Outcome(0, 0, 1, 0.0, 1.0))
        old.learn(Choice(0, 4), Outcome(4, 4, 5, 0.4, 1.1))
    new.learn(PLAIN, Outcome(0, 0, 500, 0.0, 50.0))
    new.learn(Choice(0, 4), Outcome(4, 4, 5, 40.0, 1.1))  # the draft read the prompt too
    assert old.choose(100).num_tokens > 0
    newest = pace.of_text()
    newest.learn(PLAIN, Outcome(0, 0, 5000, 0.0, 500.0))
    assert newest.choose(100).num_tokens == 0 and old.choose(100).num_tokens > 0


def test_what_texts_share_is_estimated_for_numbers_of_them_that_were_not_seen() -> None:
    seconds = SharedSeconds()
    for sharers, of_all in ((1, 1.0), (4, 1.3), (16, 4.9)):
        seconds.add(of_all / sharers, sharers)
    assert [seconds.each(n) * n for n in (1, 2, 4, 10, 16)] == pytest.approx([1.0, 1.1, 1.3, 3.1, 4.9])
