"""Which tokens are accepted: greedy and coupled ones are the target's own, of chains and of trees.

Chi-square tests count as failed below a tail of 1e-6, the probability of a false alarm of each; their seeds are fixed,
so that what passes once always passes.
"""

from collections.abc import Callable

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny_levels import (
    gumbel_max,
    paths_of,
)

from mxconv.errors import ModelError
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance, Verdict
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import MAX_SEED, Selection
from mxconv.text.distribution import Sampling, distribution

SAMPLINGS = [Sampling(), Sampling(0.6), Sampling(1.5), Sampling(1.0, top_k=3), Sampling(0.8, top_p=0.7)]
LOGITS = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(7)), elements=st.integers(-3, 3).map(float))


@st.composite
def judged(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    logits = draw(LOGITS)
    tokens = draw(st.lists(st.integers(0, 6), min_size=len(logits) - 1, max_size=len(logits) - 1))
    return logits, tokens


@given(judged())
def test_greedy_tokens_stand_up_to_the_first_that_is_not_the_most_likely(case: tuple[np.ndarray, list[int]]) -> None:
    logits, proposed = case
    best = [row.tolist().index(row.max()) for row in logits]
    num_right = next((i for i, token in enumerate(proposed) if token != best[i]), len(proposed))
    verdict = GreedyAcceptance().judge(logits, Proposal(proposed), 5)
    assert verdict == Verdict(best[: num_right + 1], path=list(range(num_right)))


@given(judged(), st.integers(0, MAX_SEED), st.integers(0, 2**40), st.sampled_from(SAMPLINGS))
def test_coupled_tokens_are_draws_whose_noise_is_that_of_their_position(
    case: tuple[np.ndarray, list[int]], seed: int, position: int, sampling: Sampling
) -> None:
    logits, proposed = case
    drawn = [gumbel_max(distribution(row, sampling), seed, position + i) for i, row in enumerate(logits)]
    num_right = next((i for i, token in enumerate(proposed) if token != drawn[i]), len(proposed))
    verdict = CoupledAcceptance(sampling, seed).judge(logits, Proposal(proposed), position)
    assert verdict == Verdict(drawn[: num_right + 1], path=list(range(num_right)))


@given(st.integers(0, MAX_SEED), st.integers(0, 1000), st.integers(1, 500))
def test_padding_of_a_vocabulary_changes_no_coupled_draw(seed: int, position: int, num_padding: int) -> None:
    logits = np.random.default_rng(position).standard_normal(40).astype(np.float32)
    padded = np.concatenate([logits, np.full(num_padding, -np.inf, np.float32)])
    acceptance = CoupledAcceptance(Sampling(), seed)
    assert acceptance.draw(logits, position) == acceptance.draw(padded, position)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_coupled_draws_have_the_targets_distribution(sampling: Sampling, along: str) -> None:
    logits = np.array([0.3, -1.0, 1.2, 0.0, 0.9, -0.2], np.float32)
    counts = np.zeros(6)
    for i in range(6000):
        seed, position = (i, 17) if along == "seeds" else (17, i)
        counts[CoupledAcceptance(sampling, seed).draw(logits, position)] += 1
    assert tail_of_counts(counts, distribution(logits, sampling)) > FALSE_ALARM


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.data())
def test_the_ranking_is_the_order_of_draws_without_replacement(seed: int, position: int, data: st.DataObject) -> None:
    """Of any tokens, asked in any order: the next is drawn where those before it are forbidden."""
    rule = CoupledAcceptance(Sampling(0.7), seed)
    logits = np.random.default_rng(seed).standard_normal(40).astype(np.float32)
    for _ in range(3):
        known = sorted(data.draw(st.sets(st.integers(0, 39), min_size=1, max_size=6)))
        ranking = rule.ranking(logits[known], position, np.array(known))
        left = np.full(40, -np.inf, np.float32)
        left[known] = logits[known]
        for place in np.argsort(-ranking):
            assert CoupledAcceptance(Sampling(0.7), seed).draw(left, position) == known[place]
            left[known[place]] = -np.inf
    assert int(rule.ranking(logits, position).argmax()) == rule.draw(logits, position)


def test_rules_without_noise_to_hear_rank_by_probability() -> None:
    logits = np.array([0.1, 3.0, -1.0, 2.0], np.float32)
    ids = np.array([7, 1, 5, 2])
    np.testing.assert_array_equal(GreedyAcceptance().ranking(logits, 3, ids), logits)
    tempered = RejectionAcceptance(Sampling(0.5, top_k=3), 1).ranking(logits, 3, ids)
    weights = np.exp(np.array([0.1, 3.0, -np.inf, 2.0]) / 0.5)
    np.testing.assert_allclose(np.exp(tempered), weights / weights.sum(), rtol=1e-6)


def test_draws_at_neighbouring_positions_have_nothing_to_do_with_each_other() -> None:
    logits = np.array([0.0, 0.5, 1.0], np.float32)
    draws = [CoupledAcceptance(Sampling(), 3).draw(logits, position) for position in range(6001)]
    counts = np.zeros((3, 3))
    np.add.at(counts, (draws[:-1], draws[1:]), 1)
    shares = distribution(logits, Sampling())
    assert tail_of_counts(counts, np.tile(shares, (3, 1))) > FALSE_ALARM


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(ModelError, match=f"^seed: {seed}; a number from 0 to {MAX_SEED} is required. Choose another.$"):
        Selection(Sampling(), seed=seed)


def test_a_selection_makes_the_rule_it_names() -> None:
    assert isinstance(Selection().acceptance(), GreedyAcceptance)
    assert isinstance(Selection(Sampling()).acceptance(), CoupledAcceptance)
    assert type(Selection(Sampling(), "rejection").acceptance()) is RejectionAcceptance
    assert isinstance(Selection(Sampling(), "block").acceptance(), BlockAcceptance)
    assert isinstance(Selection(accept="block").acceptance(), GreedyAcceptance)
    with pytest.raises(
        ModelError, match=r"^accept: 'judge'; one of coupled, rejection, block is required\. Choose one\.$"
    ):
        Selection(accept="judge")  # type: ignore[arg-type]


NUM_TOKENS = 5


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """Up to twelve nodes; siblings carry different tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        used = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        if free := sorted(set(range(NUM_TOKENS)) - used):
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
        else:
            break
    return Proposal(tokens, parents=parents)


@given(trees(), st.integers(0, 2**32))
def test_a_level_follows_its_own_tokens_down_the_tree_and_adds_one(proposal: Proposal, seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((len(proposal.tokens) + 1, NUM_TOKENS)).astype(np.float32)
    coupled = CoupledAcceptance(Sampling(), seed)
    rules: list[tuple[Acceptance, Callable[[int, int], int]]] = [
        (GreedyAcceptance(), lambda row, _: int(logits[row].argmax())),
        (coupled, lambda row, depth: coupled.draw(logits[row], 7 + depth)),
    ]
    for rule, own in rules:
        verdict = rule.judge(logits, proposal, 7)
        assert len(verdict.tokens) == len(verdict.path) + 1
        row, parent = 0, -1
        for depth, token in enumerate(verdict.tokens):
            assert token == own(row, depth)
            if depth < len(verdict.path):
                node = verdict.path[depth]
                assert proposal.parents is not None
                assert (proposal.tokens[node], proposal.parents[node]) == (token, parent)
                row, parent = node + 1, node
        assert verdict.tokens[-1] not in {proposal.tokens[child] for child in proposal.children(parent)}


@given(trees(), st.integers(1, NUM_TOKENS))
def test_a_tree_loses_what_a_smaller_vocabulary_lacks_and_all_that_hangs_there(proposal: Proposal, size: int) -> None:
    found = paths_of(proposal.within(size, 99))
    assert found == [path for path in paths_of(proposal) if max(path) < size]
    assert Proposal([1, -1, 2]).within(5, 9).tokens == [1]
