"""Speculation by load: never far from the best fixed length, never far below plain decoding, at any number of texts."""

from itertools import pairwise

import pytest
from simulated_batch import SimulatedBatch, roofline, texts

from mxconv.drafts.passes import JointPass, Load
from mxconv.speculation.pacing.adaptive_pace import AdaptivePace
from mxconv.speculation.pacing.pace import PLAIN, Choice, Outcome
from mxconv.speculation.pacing.shared_seconds import SharedSeconds

COUNTS = (1, 2, 4, 8, 16)
MACHINES = {"memory": roofline(256), "knee at 16": roofline(16), "knee at 4": roofline(4), "compute": roofline(1)}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("num_texts", COUNTS)
@pytest.mark.parametrize(("acceptance", "share"), [(0.0, 0.3), (0.3, 0.5), (0.6, 0.3), (0.9, 0.1), (0.5, 0.9)])
def test_it_is_never_slower_than_plain_decoding(machine: str, num_texts: int, acceptance: float, share: float) -> None:
    batch = SimulatedBatch(MACHINES[machine], share, acceptance, noise=0.05)
    rate = batch.run(texts(AdaptivePace(1), num_texts), 256 if num_texts > 1 else 512)
    assert rate > 0.97


@pytest.mark.parametrize("num_texts", COUNTS[2:])
def test_short_texts_are_not_slower_than_plain_decoding(num_texts: int) -> None:
    """A model draft reads a prompt before it says anything, and of short texts that is much."""
    batch, pace = SimulatedBatch(MACHINES["knee at 16"], 0.3, 0.1, noise=0.05, prompt_tokens=64), AdaptivePace(1)
    first = batch.run(texts(pace, num_texts), 32)
    rates = [batch.run(texts(pace, num_texts), 32) for _ in range(8)]
    assert first > 0.9 and sorted(rates)[4] > 0.97 and sum(rates) / 8 > 0.97


KNEE = MACHINES["knee at 4"]
READS = {0: 0.35}  # it has a cache of its own


@pytest.mark.parametrize(("prompt_tokens", "num_new", "num_texts"), [(64, 128, 1), (64, 128, 2), (512, 256, 1)])
def test_a_draft_that_is_nearly_always_right_is_used_behind_a_long_prompt(
    prompt_tokens: int, num_new: int, num_texts: int
) -> None:
    """What it takes to read the prompt comes back, and no text is decoded plainly for fear of it."""
    batch, pace = SimulatedBatch(KNEE, 0.15, 0.95, 0.05, prompt_tokens=prompt_tokens), AdaptivePace(1, reads=READS)
    of_prompt = batch.price(64) / 64 * prompt_tokens
    rates = [batch.decode(texts(pace, num_texts, prompt_tokens, of_prompt), num_new) for _ in range(6)]
    reading = batch.draft_share * batch.price(num_texts * prompt_tokens) / batch.price(num_texts)
    best = num_new / (num_new / batch.best(num_texts)[0] + reading)
    assert min(rates) > 0.7 * best and sum(rates) / 6 > 0.8 * best


@pytest.mark.parametrize(("prompt_tokens", "num_new"), [(64, 32), (64, 128), (512, 32), (512, 256)])
def test_long_prompts_and_useless_drafts(prompt_tokens: int, num_new: int) -> None:
    """Never are so many tokens read for so few; and what was lost once is not lost with every text."""
    batch, pace = SimulatedBatch(KNEE, 0.15, 0.1, 0.05, prompt_tokens=prompt_tokens), AdaptivePace(1, reads=READS)
    of_prompt = batch.price(64) / 64 * prompt_tokens
    rates = [batch.decode(texts(pace, num_texts, prompt_tokens, of_prompt), num_new) for num_texts in (1, 2, 4, 8) * 6]
    assert min(rates) > 0.88 and sum(rates) / len(rates) > 0.98


def test_one_text_tries_what_has_to_catch_up_and_the_others_wait_for_what_it_learns() -> None:
    batch, pace = SimulatedBatch(MACHINES["memory"], 0.1, 0.9, prompt_tokens=64), AdaptivePace(1)
    batch.run(texts(pace, 8), 6)
    assert batch.num_catching_up[0] == 0  # what a plain round costs
    assert batch.num_catching_up[1] == 1  # one text's draft reads its prompt
    assert batch.num_catching_up[2] == 0 and batch.asked[16:24].count(0) == 7  # and says what a token costs
    assert batch.num_catching_up[3] == 7  # all follow


def test_who_leaves_before_a_trial_ends_does_not_keep_others_from_it() -> None:
    pace = AdaptivePace(1)
    paces, load = texts(pace, 3), Load(3)
    for number in range(3):
        paces[number].learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.3, load=load, joint=JointPass(1, 3, 0.9), draft_sharers=3))
    assert [each.choose(10, load).num_tokens > 0 for each in paces] == [True, False, False]
    load = Load(2)
    for step in range(4):
        chosen = [each.choose(10, load) for each in paces[1:]]
        if any(choice.num_tokens for choice in chosen):
            return
        for each in paces[1:]:
            joint = JointPass(2 + step, 2, 0.8)
            each.learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.4, load=load, joint=joint, draft_sharers=2))
    raise AssertionError("nobody tries the draft again")


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


def test_numbers_of_texts_that_differ_by_rounding_are_one() -> None:
    seconds = SharedSeconds()
    for sharers in (3.0, 3.0000000000000004, 2.9999999999999996):
        seconds.add(1.0, sharers)
    assert seconds.each(3) == pytest.approx(1.0)


def test_what_texts_share_is_estimated_for_numbers_of_them_that_were_not_seen() -> None:
    seconds = SharedSeconds()
    for sharers, of_all in ((1, 1.0), (4, 1.3), (16, 4.9)):
        seconds.add(of_all / sharers, sharers)
    assert [seconds.each(n) * n for n in (1, 2, 4, 10, 16)] == pytest.approx([1.0, 1.1, 1.3, 3.1, 4.9])
