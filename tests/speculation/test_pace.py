"""The adaptive pace on simulated processors, whose best fixed choice and whose plain speed are known.

Times are counted without the noise that the pace is told, so that every bound is about its choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from simulated_machine import SimulatedBatch, SimulatedDraft, SimulatedMachine, roofline, texts

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.adaptive_pace import AUTO_TOKENS, AdaptivePace, DraftEstimate
from mxconv.speculation.loaded_level import USUAL_SHARE
from mxconv.speculation.pace import PLAIN, Choice, FixedPace, Outcome, Pace, Prices
from mxconv.speculation.passes import ALONE, JointPass, Load


def pace_of(num_drafts: int) -> AdaptivePace:
    return AdaptivePace([DraftEstimate() for _ in range(num_drafts)])


def informed(drafts: Sequence[SimulatedDraft]) -> AdaptivePace:
    """A pace that knows what reading costs, as a hierarchy tells it: the level reads a token of a prompt in .2."""
    return AdaptivePace([DraftEstimate(reads=draft.catch_up_seconds / 0.2) for draft in drafts])


def grower(is_model: bool) -> DraftEstimate:
    """A draft that makes trees."""
    return DraftEstimate(USUAL_SHARE if is_model else 0.0, grows=True, by_depth=is_model)


def chain(num_tokens: int) -> Choice:
    return Choice(0, TreeLimits.chain(num_tokens))


SELF = SimulatedDraft(acceptance=0.8, seconds=0.3)  # a 4-bit copy
SMALL = SimulatedDraft(acceptance=0.6, seconds=0.05, catch_up_seconds=0.01)  # another model
LOOK_UP = SimulatedDraft(acceptance=0.7, seconds=0.001, starts=0.3)
GOOD = {
    "a 4-bit copy": [SELF],
    "a 4-bit copy that stops where it doubts": [SimulatedDraft(0.85, 0.28, keeps_on=0.8)],
    "a copy that hardly pays": [replace(SELF, acceptance=0.5)],
    "a small model": [SMALL],
    "a look-up": [LOOK_UP],
    "two, the second better": [SELF, SMALL],
    "three": [replace(SELF, acceptance=0.9), replace(SMALL, acceptance=0.5), replace(LOOK_UP, starts=0.15)],
}
USELESS = {
    "a 4-bit copy": [replace(SELF, acceptance=0.0)],
    "one that is right at times, and too seldom": [replace(SELF, acceptance=0.2)],
    "one that has to read a prompt first": [SimulatedDraft(0.0, 0.1, catch_up_seconds=0.03)],
    "a look-up": [replace(LOOK_UP, acceptance=0.0, starts=1.0)],
    "one as slow as the level": [SimulatedDraft(0.0, 1.0)],
    "four": [SimulatedDraft(0.0, 0.3), SimulatedDraft(0.05, 0.3), SimulatedDraft(0.0, 1.0), SimulatedDraft(0.1, 0.2)],
}


@pytest.mark.parametrize("case", GOOD)
def test_drafts_that_pay_are_used_nearly_as_well_as_by_the_best_fixed_choice(case: str) -> None:
    ratios, short = [], []
    for seed, noise in enumerate((0.0, 0.15)):
        machine = SimulatedMachine(GOOD[case], noise=noise, seed=seed)
        pace = informed(GOOD[case])
        machine.run(pace, 500)
        learned = machine.num_tokens, machine.seconds
        machine.run(pace, 1500)
        ratios.append((machine.num_tokens - learned[0]) / (machine.seconds - learned[1]) / machine.best_rate())
    for seed in range(6):  # of the first text already most of the gain is had
        machine = SimulatedMachine(GOOD[case], noise=0.15, seed=seed)
        machine.run(informed(GOOD[case]), 64)
        short.append(machine.num_tokens / machine.seconds)
    assert np.mean(ratios) > 0.95, ratios
    assert np.mean(short) > 1 + 0.6 * (machine.best_rate() - 1)


# a target of 1.5 billion weights with its own 4 bits and a model of 0.5 billion in 4 bits, in plain passes: prices as
# measured (docs/benchmarks.md, "A pair of one family"), the small model reads a token of the prompt in .025
OWN = SimulatedDraft(0.95, 0.33, num_certain=0.9)
OTHER = SimulatedDraft(0.95, 0.12, catch_up_seconds=0.025, num_certain=0.9)
CHAT = [replace(OWN, acceptance=0.85, num_certain=0.7), replace(OTHER, acceptance=0.7, num_certain=0.5)]
BF16, FMA = (1.0, 1.0, 1.02, 1.05, 1.65, 3.2), (1.0, 1.15, 1.5, 1.75, 2.9, 5.4)  # AVX-512 BF16, AVX2
VNNI, EXACT = (1.0, 1.05, 1.17, 2.05, 4.0, 8.0), (1.0, 1.0, 1.05, 1.4, 2.2, 4.2)  # AVX-VNNI, BSFP by AVX-512 BF16
PAIRS = {
    "code": ([OWN, OTHER], BF16),
    "code, the small model nearly always right": ([OWN, replace(OTHER, acceptance=0.97, num_certain=0.97)], BF16),
    "chat": (CHAT, BF16),
    "chat, the small model behind": ([replace(CHAT[0], acceptance=0.88), replace(CHAT[1], acceptance=0.6)], BF16),
    "code, AVX2": ([OWN, OTHER], FMA),
    "chat, AVX2": (CHAT, FMA),
    "code, AVX-VNNI": ([OWN, OTHER], VNNI),
    "chat, AVX-VNNI": (CHAT, VNNI),
    "code, BSFP": ([OWN, OTHER], EXACT),
    "chat, BSFP": (CHAT, EXACT),
}


class FixedDraft(FixedPace):
    """Always the same number of tokens of the second draft."""

    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        return replace(super().choose(limit, load, unread), draft=1)


def regret(
    drafts: list[SimulatedDraft], curve: tuple[float, ...], num_texts: int, num_seeds: int, disturbed: float = 0.0
) -> float:
    """The seconds of the best fixed draft and length over those of the pace."""

    def seconds(made: Callable[[], Pace], seed: int) -> float:
        machine, pace = SimulatedMachine(drafts, curve=curve, noise=0.05, seed=seed, disturbed=disturbed), made()
        for _ in range(num_texts):
            machine.run(pace, 96, prompt=100)
        return machine.seconds

    kinds = (FixedPace, FixedDraft)[: len(drafts)]
    fixed = [partial(kind, length) for kind in kinds for length in (1, 2, 3, 4, 6, 8, 12, 16)]
    best = min(np.mean([seconds(made, seed) for seed in range(num_seeds)]) for made in fixed)
    estimates = [DraftEstimate(0.35, has_chances=True), DraftEstimate(0.12, 0.125, has_chances=True)][: len(drafts)]
    return best / float(np.mean([seconds(lambda: AdaptivePace(estimates), seed) for seed in range(num_seeds)]))


@pytest.mark.parametrize("case", PAIRS)
def test_of_two_drafts_at_real_prices_the_better_one_is_found_in_the_first_text(case: str) -> None:
    assert regret(*PAIRS[case], 1, 24) > 0.93
    assert regret(*PAIRS[case], 8, 8) > 0.97


@pytest.mark.parametrize(("acceptance", "num_certain"), [(0.6, 0.3), (0.72, 0.4), (0.8, 0.5)])
def test_a_dear_copy_is_not_given_up_after_its_first_tokens(acceptance: float, num_certain: float) -> None:
    """Prices of SmolLM2, whose first proposals have a token each, as more would cost too much if they failed."""
    assert regret([SimulatedDraft(acceptance, 0.4, num_certain=num_certain)], BF16, 1, 48) > 0.97


def test_a_look_up_that_is_seldom_right_takes_no_rounds_from_a_model_in_a_first_text() -> None:
    def seconds(estimates: Sequence[DraftEstimate], seed: int) -> float:
        drafts = [CHAT[1], replace(LOOK_UP, acceptance=0.2, starts=0.6)]
        machine = SimulatedMachine(drafts, curve=BF16, noise=0.05, seed=seed)
        machine.run(AdaptivePace(estimates), 96, prompt=100)
        return machine.seconds

    made = DraftEstimate(0.12, 0.125, has_chances=True), DraftEstimate(0.0, is_look_up=True)
    alone, both = (np.mean([seconds(made[:count], seed) for seed in range(48)]) for count in (1, 2))
    assert both < 1.06 * alone


def test_prices_measured_in_a_bad_moment_are_not_believed_for_long() -> None:
    """Rounds of the first ten seconds seem to take once to three times as long, as beside another program."""
    ratios = [regret(*PAIRS[case], 1, 48, disturbed=10) for case in PAIRS if case.startswith("chat")]
    assert min(ratios) > 0.87 and np.mean(ratios) > 0.91, ratios


@pytest.mark.parametrize("case", USELESS)
def test_drafts_that_never_pay_cost_at_most_5_percent(case: str) -> None:
    for num_tokens, noise, count in ((64, 0.15, 8), (1000, 0.15, 1)):
        taken = []
        for seed in range(count):
            machine = SimulatedMachine(USELESS[case], noise=noise, seed=seed)
            machine.run(pace_of(len(USELESS[case])), num_tokens)
            taken.append(machine.seconds / (machine.num_tokens - 1))
        assert np.mean(taken) < 1.05, (num_tokens, noise, taken)
    assert max(taken) < 1.04  # of a long text hardly anything


@pytest.mark.parametrize("case", ["a 4-bit copy", "a small model", "two, the second better"])
def test_drafts_that_turn_useless_are_given_up_and_come_back_when_they_are_good_again(case: str) -> None:
    good, lost, found_again = GOOD[case], [], []
    for seed in range(4):
        machine = SimulatedMachine(good, noise=0.1, seed=seed)
        pace = pace_of(len(good))
        machine.run(pace, 300)
        machine.drafts, before = [replace(draft, acceptance=0.0) for draft in good], machine.seconds
        machine.run(pace, 500)
        lost.append(machine.seconds - before - 500)
        machine.drafts, before = good, machine.seconds
        machine.run(pace, 1500)
        found_again.append(1500 / (machine.seconds - before) / machine.best_rate())
    assert np.mean(lost) < 0.05 * 500
    assert np.mean(found_again) > 0.8


@pytest.mark.parametrize("speeds", [(1.0, 0.4, 1.0), (1.0, 3.0, 1.0)])
def test_prices_that_change_midway_are_found_out(speeds: tuple[float, ...]) -> None:
    """As when another program takes memory bandwidth, and then does not; and when a draft becomes dear."""
    for drafts, at_least in (([SELF], 0.9), ([replace(SELF, acceptance=0.0)], 1 / 1.05)):
        machine, pace = SimulatedMachine(drafts, noise=0.1), pace_of(1)
        for speed in speeds:
            machine.speed = speed
            machine.run(pace, 400)
        assert machine.num_tokens / machine.seconds > at_least * machine.best_rate()
    machine, pace = SimulatedMachine([SELF]), pace_of(1)
    machine.run(pace, 300)
    machine.drafts, before = [replace(SELF, seconds=1.5)], machine.seconds
    machine.run(pace, 500)
    assert machine.seconds - before < 1.05 * 500


def test_a_draft_that_makes_a_block_at_once_is_asked_for_long_ones() -> None:
    """A first token that costs .9 of a pass loses alone, and seven further ones cost nothing but their rows."""
    block = SimulatedDraft(0.8, 0.9, at_once=True)
    machine, pace = SimulatedMachine([block], noise=0.1), AdaptivePace([DraftEstimate(at_once=True)])
    machine.run(pace, 2000)
    assert machine.num_tokens / machine.seconds > 0.85 * machine.best_rate() > 1.7
    assert np.mean([choice.num_tokens for choice in machine.choices[100:] if choice.num_tokens]) > 5


def test_an_interruption_is_not_believed() -> None:
    machine, pace = SimulatedMachine([SELF]), pace_of(1)
    machine.run(pace, 300)
    pace.learn(chain(4), Outcome(4, 4, 5, 100.0, 1.12))
    before = machine.seconds
    machine.run(pace, 300)
    assert 300 / (machine.seconds - before) > 0.85 * machine.best_rate()


def test_many_short_texts_cost_5_percent_at_most_though_each_prompt_has_to_be_read() -> None:
    drafts = [SimulatedDraft(0.0, 0.3), SimulatedDraft(0.0, 0.05, catch_up_seconds=0.03), SimulatedDraft(0.0, 0.001)]
    machine, pace = (
        SimulatedMachine(drafts, noise=0.15),
        AdaptivePace([DraftEstimate(), DraftEstimate(0.15, 0.15), DraftEstimate()]),
    )
    for _ in range(40):
        machine.run(pace, 64, prompt=60)
    assert machine.seconds < 1.05 * (machine.num_tokens - 40)


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_it_asks_for_no_more_than_the_limit(limit: int) -> None:
    machine, pace = SimulatedMachine([SimulatedDraft(0.99, 0.001)]), pace_of(1)
    machine.run(pace, 200)
    for _ in range(20):
        assert 0 <= pace.choose(limit).num_tokens <= min(limit, AUTO_TOKENS)
    assert pace.choose(100).num_tokens == AUTO_TOKENS


def test_the_first_rounds_are_plain_and_only_drafts_that_exist_are_asked() -> None:
    machine = SimulatedMachine(GOOD["three"])
    machine.run(pace_of(3), 500)
    assert machine.choices[0] == PLAIN
    assert {choice.draft for choice in machine.choices if choice.num_tokens} == {0, 1, 2}
    alone = pace_of(0)
    alone.learn(PLAIN, Outcome(0, 0, 1, 0.0, 1.0))
    assert alone.choose(5) == PLAIN


def test_a_fixed_pace_asks_the_next_level_for_its_number() -> None:
    pace = FixedPace(4)
    pace.learn(chain(4), Outcome(4, 0, 5, 1.0, 1.0))
    assert [pace.choose(limit) for limit in (1, 4, 9)] == [chain(1), chain(4), chain(4)]


# batches


MACHINES = {"memory": roofline(256), "knee at 16": roofline(16), "compute": roofline(1)}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("num_texts", [1, 4, 16])
def test_texts_side_by_side_are_nearly_as_fast_as_with_the_best_fixed_length(machine: str, num_texts: int) -> None:
    batch, pace = SimulatedBatch(MACHINES[machine], 0.15, 0.8), pace_of(1)
    batch.run(texts(pace, num_texts), 60)
    assert batch.run(texts(pace, num_texts), 120) > 0.95 * batch.best(num_texts)[0]
    for acceptance, share in ((0.0, 0.3), (0.3, 0.5)):
        batch = SimulatedBatch(MACHINES[machine], share, acceptance, noise=0.05)
        assert batch.run(texts(pace_of(1), num_texts), 256) > 0.95


def test_a_load_changes_the_choice_at_once() -> None:
    pace, batch = pace_of(1), SimulatedBatch(MACHINES["knee at 16"], 0.15, 0.8)
    for num_texts in (1, 2, 4, 8, 16):
        batch.run(texts(pace, num_texts), 40)  # every load was there once
    asked = []
    for num_texts in (16, 1, 8, 2, 16):
        batch.asked.clear()
        assert batch.run(texts(pace, num_texts), 20) > 0.8 * batch.best(num_texts)[0]
        asked.append(np.mean(batch.asked))
    assert asked[1] > asked[3] > asked[2] > asked[0] and max(asked[0], asked[4]) < 0.3
    assert batch.run(texts(pace, 2), 40, other_rows=128) > 0.95  # rows of prompts in the pass make others dear


def test_rows_beside_prompts_are_never_free() -> None:
    """Two passes of prompts that happened to take as long as each other say nothing about the price of a row."""
    pace, batch = pace_of(1), SimulatedBatch(MACHINES["knee at 16"], 0.15, 0.8)
    batch.run(texts(pace, 4), 40)
    now = Load(4)
    for number, num_rows in enumerate((150, 250) * 3):
        joint = JointPass(10_000 + number, num_rows, 150 * batch.price(4) / 4)
        pace.learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.3, load=now, joint=joint, draft_sharers=4))
    asked = [each.choose(10, Load(4, 160)).num_tokens for each in texts(pace, 4) for _ in range(20)]
    assert max(asked) == 0 < pace.choose(10, now).num_tokens


def test_one_text_tries_a_draft_and_the_others_wait_for_what_it_learns() -> None:
    pace = pace_of(1)
    paces = texts(pace, 3)
    for step in range(2):
        load = Load(3 - step)
        chosen = [each.choose(10, load) for each in paces[step:]]
        if step:
            assert sum(choice.num_tokens > 0 for choice in chosen) <= 1
        for each in paces[step:]:  # nobody tells of a trial: the text that made it has left
            joint = JointPass(1 + step, load.num_texts, 0.9)
            each.learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.3, load=load, joint=joint, draft_sharers=load.num_texts))
    assert sum(each.choose(10, Load(2)).num_tokens > 0 for each in paces[1:]) == 1


def test_a_long_prompt_is_not_read_by_a_draft_for_a_few_tokens() -> None:
    batch = SimulatedBatch(roofline(4), 0.15, 0.1, 0.05, prompt_tokens=512)
    pace, of_prompt = AdaptivePace([DraftEstimate(0.35, 0.35)]), batch.price(64) / 64 * 512
    assert min(batch.decode(texts(pace, count, 512, of_prompt), 32) for count in (1, 2, 4)) > 0.95


@pytest.mark.parametrize("rows_for_nothing", [4, 8])
def test_eight_texts_whose_rows_have_their_price_do_not_wait_for_a_draft_to_read(rows_for_nothing: int) -> None:
    for seed in range(3):
        batch = SimulatedBatch(roofline(rows_for_nothing), 0.12, 0.9, 0.05, seed=seed, prompt_tokens=180)
        made = texts(AdaptivePace([DraftEstimate(0.12, 0.16)]), 8, 180, batch.price(64) / 64 * 180)
        assert batch.decode(made, 96) > 0.98


def test_a_text_that_alone_uses_a_draft_of_its_own_prompt_pays_for_the_whole_passes() -> None:
    """Its seven neighbours, whose tokens are too few to have their prompts read, wait meanwhile."""
    pace, batch = AdaptivePace([DraftEstimate(0.3, 0.3)]), SimulatedBatch(roofline(16), 0.3, 0.9)
    assert batch.run(texts(pace, 1), 60) > 1.4
    batch.prompt_tokens = 2000
    assert batch.run(texts(pace, 8, 2000, batch.price(64) / 64 * 2000), 60, num_read=1) > 0.97


def test_a_prompt_is_not_read_for_a_draft_beside_prompts_of_texts_that_will_be_decoded_too() -> None:
    pace, batch = AdaptivePace([DraftEstimate(0.12, 0.16)]), SimulatedBatch(roofline(64), 0.12, 0.9)
    batch.run(texts(pace, 2), 60)
    text, *_ = texts(pace, 2)
    for load, is_asked in ((Load(2, 40), False), (Load(2), True)):
        joint = JointPass(900 + load.other_rows, 2 + load.other_rows, 1.0)
        pace.learn(PLAIN, Outcome(0, 0, 1, 0.0, 0.5, 0, load, joint))
        assert bool(text.choose(500, load, [100]).num_tokens) == is_asked


def test_the_later_tokens_of_a_chain_are_priced_by_the_few_texts_that_still_ask_for_them() -> None:
    pace = AdaptivePace([DraftEstimate(0.3, has_chances=True)])
    draft, of_all = pace.drafts[0], pace._prices
    for num_rows in (1, 4, 8, 16):
        of_all.add(num_rows, 1.0)
        draft.unit.add(num_rows, 0.3)
    draft.depth.value = 2.0  # half of them end at every token
    for count, wanted in ((1, [0.3] * 4), (8, [0.3 / 8, 0.3 / 4, 0.3 / 2, 0.3])):
        now = Prices(of_all, Load(count))
        assert np.allclose(draft.first_units(4, now), wanted, 0.05)
        assert np.isclose(draft.drafting(3.5, now), 3.5 * np.mean(wanted), 0.05)


# trees


NODE_SECONDS, DEPTH_SECONDS = 0.0005, 0.05
Price = Callable[[int], float]  # of a pass over so many rows, a plain one being 1


def cheap(rows: int) -> float:
    return 1 + 0.005 * (rows - 1)


def dear(rows: int) -> float:
    return 1 + 0.4 * (rows - 1)


def run(pace: AdaptivePace, price: Price, right: float, is_model: bool = False) -> tuple[float, float]:
    """Decode; each node's two continuations are accepted with chances `right` and half of what is left.

    Returns:
        Tokens a second, and nodes a round, of the later half.
    """
    random, num_tokens = np.random.default_rng(4), 1500
    seconds, tokens, nodes, rounds = 0.0, 0, 0, 0
    pace.learn(PLAIN, Outcome(0, 0, 20, 0.0, 4.0))
    while tokens < num_tokens:
        choice = pace.choose(num_tokens - tokens) if num_tokens > tokens + 1 else PLAIN
        proposed, accepted, depth = 0, 0, choice.num_tokens
        chances: list[float] = []
        if not choice.limits.is_chain:
            if choice.limits.least_sum is not None:
                sums = [(right + (1 - right) / 2) ** above for above in range(choice.num_tokens)]
                depth = max(sum(total >= choice.limits.least_sum for total in sums), 1)
            chances = grown(right, choice, depth)
            proposed = len(chances)
            depth = int(np.log2(proposed + 1)) if proposed else 0
            accepted = sum(random.random() < right + (1 - right) / 2 for _ in range(depth)) if right else 0
        elif choice.num_tokens:
            proposed = choice.num_tokens
            while accepted < proposed and random.random() < right:
                accepted += 1
        took = price(1 + proposed)
        drafting = DEPTH_SECONDS * depth if is_model else NODE_SECONDS * proposed
        pace.learn(choice, Outcome(proposed, accepted, 1 + proposed, drafting, took, depth))
        if tokens > num_tokens / 2:
            seconds += took + drafting
            nodes, rounds = nodes + proposed, rounds + 1
        tokens += 1 + accepted
    return num_tokens / 2 / seconds, nodes / rounds


def grown(right: float, choice: Choice, most_depth: int) -> list[float]:
    chances: list[float] = []
    level = [1.0]
    for _ in range(min(most_depth, 5)):
        level = [chance * part for chance in level for part in (right, (1 - right) / 2)]
        chances += level
    kept = sorted(chances, reverse=True)[: len(choice.limits.floors)]
    return [chance for chance, floor in zip(kept, choice.limits.floors, strict=False) if chance >= floor]


@pytest.mark.parametrize("is_model", [False, True])
def test_trees_are_grown_where_rows_are_cheap_and_few_nodes_where_they_are_dear(is_model: bool) -> None:
    rate, nodes = run(AdaptivePace([grower(is_model)]), cheap, 0.6, is_model)
    chains, _ = run(pace_of(1), cheap, 0.6, is_model)
    assert rate > 1.1 * chains and nodes > 9
    assert run(AdaptivePace([grower(is_model)]), dear, 0.6, is_model)[1] < 2
    assert run(AdaptivePace([grower(is_model)], most_nodes=5), cheap, 0.6, is_model)[1] <= 5


@pytest.mark.parametrize("price", [cheap, dear])
@pytest.mark.parametrize("is_model", [False, True])
def test_useless_trees_cost_no_more_than_a_few_percent(price: Price, is_model: bool) -> None:
    assert run(AdaptivePace([grower(is_model)]), price, 0.0, is_model)[0] > 0.95


@pytest.mark.parametrize("sets_floors", [True, False])
def test_thresholds_that_were_given_stay(sets_floors: bool) -> None:
    pace = AdaptivePace([grower(True)], sets_floors)
    for _ in range(3):
        pace.learn(PLAIN, Outcome(0, 0, 1, 0.0, 1.0))
        pace.learn(Choice(0, TreeLimits(4, [0.0] * 7)), Outcome(7, 4, 8, 0.2, 1.0, 4))
        pace.learn(chain(1), Outcome(1, 0, 2, 0.05, 1.0))  # its trees pay, its chains do not
    assert (pace.choose(50).limits.least_sum is not None) == sets_floors
