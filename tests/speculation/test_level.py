"""One level: a round as the verifier, proposals as the draft, and how sharply its guesses are taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    by_hand,
    decoder_of,
    level_over,
    noisy_copy,
    self_draft,
    target_level,
)

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.speculation.acceptance import CoupledAcceptance, GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.model_draft import WORTH_ROUNDS, ModelDraft
from mxconv.speculation.proposal import SHARPNESS, Draft, Proposal, Sharpness, top_probability
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import Sampling

CONTEXT = [3, 1, 4, 1, 5, 9]
DECODER = decoder_of(target_level())
TRUTH = by_hand(DECODER, CONTEXT, 30)


@dataclass
class Says(Draft):
    """A draft that says what it was given, and keeps what it is shown."""

    tokens: list[int]
    statistics: LevelStatistics = field(default_factory=lambda: LevelStatistics("says"))
    asked: list[int] = field(default_factory=list)
    seen: list[tuple[list[int], Proposal, np.ndarray]] = field(default_factory=list)

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        self.asked.append(limits.most_depth)
        return Proposal(list(self.tokens))

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.seen.append((list(context), proposal, logits.copy()))


def draft_of(confidence: float = 0.0, below: Draft | None = None, decoder: Decoder = DECODER) -> ModelDraft:
    return ModelDraft(level_over(decoder, below), confidence, Sharpness())


@pytest.mark.parametrize(("seconds", "asks"), [(WORTH_ROUNDS / 2, False), (WORTH_ROUNDS * 2, True)])
def test_a_fast_model_proposes_in_one_call_and_leaves_its_look_ups_aside(seconds: float, asks: bool) -> None:
    says = Says(TRUTH.token_ids[:2])
    for weighs_rounds in (True, False):
        draft = ModelDraft(level_over(DECODER, says), 0.0, Sharpness(), weighs_rounds)
        assert draft.propose(CONTEXT, TreeLimits.chain(4)).tokens == TRUTH.token_ids[:4]
        assert says.asked  # nothing is known of its passes yet
        draft.statistics.seconds = seconds * draft.statistics.num_forwards
        says.asked.clear()
        assert draft.propose(CONTEXT, TreeLimits.chain(4)).tokens == TRUTH.token_ids[:4]
        assert bool(says.asked) == (asks or not weighs_rounds)


def wrong(token: int) -> int:
    return (token + 1) % VOCAB_SIZE


def test_a_round_without_a_draft_gives_one_token() -> None:
    one = level_over(DECODER)
    step = one.round(CONTEXT, 10)
    assert step.tokens == TRUTH.token_ids[:1]
    assert step.logits.tobytes() == TRUTH.logits[0]
    assert one.session.tokens == CONTEXT


@pytest.mark.parametrize("num_right", range(5))
def test_a_round_keeps_what_agrees_and_one_token_of_its_own(num_right: int) -> None:
    truth = TRUTH.token_ids
    draft = Says([*truth[:num_right], *map(wrong, truth[num_right:4])])
    verifier = level_over(DECODER, draft)
    step = verifier.round(CONTEXT, 10)
    assert step.tokens == truth[: num_right + 1]
    assert [row.tobytes() for row in step.logits] == TRUTH.logits[: num_right + 1]
    assert verifier.session.tokens == [*CONTEXT, *truth[:num_right]]
    assert verifier.session.cache.length == len(CONTEXT) + num_right
    counts = draft.statistics
    assert (counts.num_asked, counts.num_proposed, counts.num_accepted) == (4, 4, num_right)
    assert verifier.statistics.num_forwards == 1


def test_a_draft_is_shown_every_token_that_was_evaluated_with_its_logits() -> None:
    truth = TRUTH.token_ids
    draft = Says([truth[0], wrong(truth[1]), 5])
    verifier = level_over(DECODER, draft)
    verifier.round(CONTEXT, 10)
    ((context, proposal, logits),) = draft.seen
    assert (context, proposal.tokens) == (CONTEXT, draft.tokens)
    assert logits.tobytes() == DECODER.forward([*CONTEXT, *draft.tokens], KVCache(DECODER.config))[-4:].tobytes()
    verifier.round([*CONTEXT, *truth[:2]], 1)  # nothing is proposed, and yet there is something to see
    assert draft.seen[1][:2] == ([*CONTEXT, *truth[:2]], Proposal([]))


def test_ids_that_a_level_above_does_not_have_are_never_chosen_nor_taken() -> None:
    """Padding of a matrix is cut off before anything looks at it."""
    chosen = TRUTH.token_ids[0]
    draft = Says([chosen, 1])
    narrow = level_over(DECODER, draft, vocab_size=chosen)
    step = narrow.round(CONTEXT, 10)
    row = np.frombuffer(TRUTH.logits[0], np.float32)[:chosen]
    assert step.tokens == [int(row.argmax())]
    assert step.logits.tobytes() == row.tobytes()
    assert (draft.statistics.num_asked, draft.statistics.num_proposed) == (4, 0)
    assert draft.seen[0][2].shape == (1, chosen)


@pytest.mark.parametrize(("max_tokens", "asked"), [(1, []), (2, [1]), (4, [3]), (5, [4]), (100, [4])])
def test_a_draft_is_asked_for_no_more_than_can_be_used(max_tokens: int, asked: list[int]) -> None:
    draft = Says(TRUTH.token_ids[:8])
    step = level_over(DECODER, draft).round(CONTEXT, max_tokens)
    assert draft.asked == asked
    assert len(step.tokens) == sum(asked) + 1  # what it says beyond that is dropped


@pytest.mark.parametrize("left", [0, 1, 3])
def test_near_the_last_position_the_draft_is_asked_for_what_fits(left: int) -> None:
    context = [2] * (MAX_POSITIONS - left)
    draft = Says([1] * 10)
    assert level_over(DECODER, draft).round(context, 100).tokens
    assert draft.asked == ([left] if left else [])


def test_proposals_without_a_threshold_are_as_many_as_were_asked_for() -> None:
    drafting = draft_of()
    proposal = drafting.propose(CONTEXT, TreeLimits.chain(7))
    assert proposal.tokens == TRUTH.token_ids[:7]
    assert proposal.distributions == []  # nothing was drawn at random
    assert drafting.statistics.num_proposed == 0  # the level above counts them


def true_probabilities(sharpness: float = 1.0) -> list[float]:
    probabilities = []
    for row, token in zip(TRUTH.logits, TRUTH.token_ids, strict=True):
        logits = np.frombuffer(row, np.float32)
        exponentials = np.exp(sharpness * (logits.astype(np.float64) - logits.max()))
        probabilities.append(float(exponentials[token] / exponentials.sum()))
    return probabilities


def test_proposals_tell_the_probability_of_each_token() -> None:
    np.testing.assert_allclose(
        draft_of().propose(CONTEXT, TreeLimits.chain(8)).probabilities, true_probabilities()[:8], rtol=1e-5
    )


def test_proposals_stop_behind_the_token_that_makes_them_too_improbable_together() -> None:
    """Compared with a floor, chances are those with which a level above is expected to agree."""
    together = np.cumprod(true_probabilities(SHARPNESS)[:8])
    for floor in (*(p * factor for p in together for factor in (0.999, 1.001)), 0.0, 1.0):
        expected = next((index + 1 for index, p in enumerate(together) if p < floor), 8)
        assert draft_of(0.99).propose(CONTEXT, TreeLimits.chain(8, floor)).tokens == TRUTH.token_ids[:expected]


def test_a_chain_keeps_each_token_that_took_a_pass_and_ends_where_the_next_one_is_not_worth_its_floor() -> None:
    together = np.cumprod(true_probabilities(SHARPNESS)[:8])
    for least in (*(p * factor for p in together for factor in (0.999, 1.001)), 0.0, 1.0):
        expected = next((index + 1 for index, p in enumerate(together) if p < least), 8)
        floors, drafting = [0.0, *[float(least)] * 7], draft_of()
        found = drafting.propose(CONTEXT, replace(TreeLimits.chain(8, 0.0), floors=floors))
        assert found.tokens == TRUTH.token_ids[:expected]
        assert drafting.statistics.num_forwards == expected


def test_proposals_stop_behind_the_first_token_that_is_not_certain_enough() -> None:
    probabilities = true_probabilities()
    for threshold in (*(p + delta for p in probabilities for delta in (-1e-6, 1e-6)), 0.0, 1.0):
        below = [index for index, p in enumerate(probabilities[:8]) if p < threshold]
        expected = below[0] + 1 if below else 8
        assert draft_of(threshold).propose(CONTEXT, TreeLimits.chain(8)).tokens == TRUTH.token_ids[:expected]


def test_a_drafts_own_draft_changes_nothing_about_its_proposals_but_the_work() -> None:
    for confidence in (0.0, 0.2, 0.6):
        alone = draft_of(confidence)
        helped = draft_of(confidence, draft_of(decoder=decoder_of(noisy_copy(noise=0.0))))
        assert helped.propose(CONTEXT, TreeLimits.chain(9)) == alone.propose(CONTEXT, TreeLimits.chain(9))
        assert helped.statistics.num_forwards <= alone.statistics.num_forwards


def test_a_draft_with_its_own_session_goes_on_where_the_contexts_agree() -> None:
    drafting = draft_of()
    drafting.propose(CONTEXT, TreeLimits.chain(3))
    before = drafting.statistics.num_forwards
    other = [*CONTEXT, TRUTH.token_ids[0], wrong(TRUTH.token_ids[1]), 5]
    expected = by_hand(DECODER, other, 2).token_ids
    assert drafting.propose(other, TreeLimits.chain(2)).tokens == expected
    assert drafting.statistics.num_forwards == before + 2
    assert drafting.level.session.tokens == [*other, expected[0]]


@pytest.mark.parametrize(
    ("logits", "probability"),
    [
        ([0.0, 0.0, 0.0, 0.0], 0.25),
        ([1000.0, 0.0, 0.0, 0.0], 1.0),
        ([-1e30, -np.inf, -np.inf, -np.inf], 1.0),
        ([3e38, -3e38, -3e38, -3e38], 1.0),
    ],
)
def test_a_probability_is_the_softmax(logits: list[float], probability: float) -> None:
    assert top_probability(np.array(logits, np.float32)) == probability


def test_a_probability_of_what_is_not_a_number_passes_no_threshold() -> None:
    for logits in ([np.nan] * 3, [np.inf, 0.0, 0.0]):
        assert not top_probability(np.array(logits, np.float32)) >= 0.0


# ---- how sharply a model's guesses are taken ----


@pytest.mark.parametrize(
    ("own", "rule"),
    [(1.2, GreedyAcceptance()), (3.5, GreedyAcceptance()), (2.0, CoupledAcceptance(Sampling(1.0), 3))],
)
def test_it_finds_how_sharply_the_level_above_agrees(own: float, rule: GreedyAcceptance | CoupledAcceptance) -> None:
    random = np.random.default_rng(0)
    sharpness = Sharpness()
    found = []
    for position in range(4000):
        logits = random.normal(size=12).astype(np.float32)
        said = rule.guesses(logits, position, 0.0, 3, sharpness.value)
        truth = rule.guesses(logits, position, 0.0, 12, own)
        chosen = int(random.choice(truth.tokens, p=np.array(truth.chances) / sum(truth.chances)))
        sharpness.learn(Proposal(said.tokens, [], said.chances, [-1] * len(said.tokens)), [chosen])
        found.append(sharpness.value)
    assert np.mean(found[2000:]) == pytest.approx(own, rel=0.15)


DRAFTS = {
    "a copy": [noisy_copy()],
    "two levels": [self_draft(), noisy_copy()],
}


@pytest.mark.parametrize("drafts", DRAFTS.values(), ids=DRAFTS)
def test_models_keep_theirs_from_text_to_text(drafts: list[LoadedLevel]) -> None:
    hierarchy = Hierarchy([target_level(), *drafts], [4], [0.0], 12)
    values = []
    for first in range(3):
        hierarchy.generate([first, 1, 4, 1, 5, 9], 40)
        values.append([sharpness.value for sharpness in hierarchy._sharpness])
    assert values[0][1] != values[1][1] != values[2][1]
    assert all(value[0] == 1 for value in values)  # of the target, which drafts for nobody
    chains = Hierarchy([target_level(), *drafts], [4], [0.0], "chain")
    chains.generate([1, 4, 1, 5, 9], 40)
    assert [each.value for each in chains._sharpness[1:]] == [SHARPNESS if each.shares_cache else 1 for each in drafts]
