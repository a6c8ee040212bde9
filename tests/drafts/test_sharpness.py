"""Sharpness: a model's guesses come to stand as often as they say, whatever the level above makes of them."""

import numpy as np
import pytest
from tiny_levels import noisy_copy, self_draft, target_level

from mxconv.speculation.acceptance import CoupledAcceptance, GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.proposal import LEAST, MOST, SHARPNESS, Proposal, Sharpness
from mxconv.text.distribution import Sampling

CHAIN_AND_SIBLING = Proposal([5, 6, 7, 8], probabilities=[0.75, 0.25, 0.5, 0.25], parents=[-1, -1, 0, 2])


def test_only_the_likeliest_token_of_each_place_on_the_path_counts() -> None:
    for tokens, surprise in (
        ([5, 7, 8, 1], 0.25 + 0.5 + 0.75),
        ([5, 7, 1], 0.25 + 0.5 - 0.25),
        ([5, 9], 0.25 - 0.5),
        ([6, 9], -0.75),  # after the sibling nothing was guessed
        ([9], -0.75),
    ):
        sharpness = Sharpness()
        sharpness.learn(CHAIN_AND_SIBLING, tokens)
        assert sharpness.value == pytest.approx(SHARPNESS * np.exp(0.02 * surprise))


def test_what_was_drawn_and_nothing_teach_nothing() -> None:
    drawn = Proposal([5], [np.ones(9) / 9], [0.2], [-1])
    for proposal in (drawn, Proposal([5]), Proposal([])):
        sharpness = Sharpness()
        sharpness.learn(proposal, [5, 1])
        assert sharpness.value == SHARPNESS


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


def test_it_stays_within_bounds() -> None:
    for tokens, bound in (([9], LEAST), ([5, 7, 8, 1], MOST)):
        sharpness = Sharpness()
        for _ in range(1000):
            sharpness.learn(CHAIN_AND_SIBLING, tokens)
        assert sharpness.value == bound


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
    assert all(value[0] == SHARPNESS for value in values)  # of the target, which drafts for nobody
    chains = Hierarchy([target_level(), *drafts], [4], [0.0], "chain")
    chains.generate([1, 4, 1, 5, 9], 40)
    assert {each.value for each in chains._sharpness} == {SHARPNESS}
