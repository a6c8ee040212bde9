"""Trees of proposals: walked by the level's own tokens, and under rejection or block without any change of
distribution."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from hypothesis import given
from hypothesis import strategies as st
from tiny_levels import paths_of

from mxconv.arrays import F64
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance, Verdict
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.proposal import Proposal
from mxconv.text.distribution import Sampling, distribution

VOCAB_SIZE = 5
NUM_DRAWS = 4_000  # of a right rule; a wrong one is found out in 12,000


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """Up to twelve nodes; siblings carry different tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, node - 1))
        used = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        if free := sorted(set(range(VOCAB_SIZE)) - used):
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
        else:
            break
    return Proposal(tokens, parents=parents)


@given(trees(), st.integers(0, 2**32))
def test_a_level_follows_its_own_tokens_down_the_tree_and_adds_one(proposal: Proposal, seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((len(proposal.tokens) + 1, VOCAB_SIZE)).astype(np.float32)
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


@given(trees(), st.integers(1, VOCAB_SIZE))
def test_a_tree_loses_what_a_smaller_vocabulary_lacks_and_all_that_hangs_there(proposal: Proposal, size: int) -> None:
    found = paths_of(proposal.within(size, 99))
    assert found == [path for path in paths_of(proposal) if max(path) < size]


DRAFT = distribution(np.array([0.9, 0.2, -0.3, 0.4, -1.0], np.float32), Sampling())
TARGET = np.array([[0.1, 0.8, -0.2, -0.5, 0.6], [1.0, -0.4, 0.3, 0.0, 0.2], [-0.6, 0.5, 0.9, 0.1, -0.2]], np.float32)
Shape = tuple[int, ...]  # children of the context, and of each of these, and so on


def drawn_tree(shape: Shape, random: np.random.Generator) -> Proposal:
    """A tree whose siblings are drawn without replacement, in the order in which they came."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes = [-1]
    for width in shape:
        nodes = [_add(tokens, parents, node, token) for node in nodes for token in _without_replacement(width, random)]
    return Proposal(tokens, [DRAFT] * len(tokens), parents=parents)


def _add(tokens: list[int], parents: list[int], parent: int, token: int) -> int:
    tokens.append(token)
    parents.append(parent)
    return len(tokens) - 1


def _without_replacement(count: int, random: np.random.Generator) -> list[int]:
    """The first of the Gumbel order, which is drawing one after another from what is left."""
    return np.argsort(-(np.log(DRAFT) + random.gumbel(size=VOCAB_SIZE)))[:count].tolist()


def certain_tree(shape: Shape, random: np.random.Generator) -> Proposal:
    """A draft without chance: always the same tree."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes = [-1]
    for width in shape:
        nodes = [_add(tokens, parents, node, token) for node in nodes for token in range(1, width + 1)]
    return Proposal(tokens, parents=parents)


def tail_of_pairs(
    rule: RejectionAcceptance,
    tree: Callable[[Shape, np.random.Generator], Proposal],
    shape: Shape,
    sampling: Sampling,
    num_draws: int = NUM_DRAWS,
) -> float:
    """The chi-square tail of the first two tokens: the logits after a node follow from its token."""
    random = np.random.default_rng(5)
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for _ in range(num_draws):
        proposal = tree(shape, random)
        verdict = rule.judge(TARGET[[0, *(1 + token % 2 for token in proposal.tokens)]], proposal, 0)
        first, *rest = verdict.tokens
        second = rest[0] if rest else rule._draw(distribution(TARGET[1 + first % 2], sampling))
        counts[first, second] += 1
    after = np.array([distribution(TARGET[1 + token % 2], sampling) for token in range(VOCAB_SIZE)])
    return tail_of_counts(counts.ravel(), (distribution(TARGET[0], sampling)[:, None] * after).ravel())


@pytest.mark.parametrize("rule", [RejectionAcceptance, BlockAcceptance])
@pytest.mark.parametrize(
    ("tree", "shape", "sampling"),
    [
        (drawn_tree, (2, 2), Sampling()),
        (drawn_tree, (4,), Sampling(0.8, top_k=4)),
        (drawn_tree, (3, 1), Sampling(0.8, top_k=4)),
        (certain_tree, (2, 3), Sampling()),
    ],
)
def test_rejection_on_trees_keeps_the_targets_distribution(
    tree: Callable[[Shape, np.random.Generator], Proposal],
    shape: Shape,
    sampling: Sampling,
    rule: type[RejectionAcceptance],
) -> None:
    assert tail_of_pairs(rule(sampling, 3), tree, shape, sampling) > FALSE_ALARM


class JudgesSiblingsAlike(RejectionAcceptance):
    """Forgets that a sibling was drawn from what the one before it left."""

    def _first_accepted(self, ours: F64, proposal: Proposal, siblings: Sequence[int]) -> tuple[int | None, F64]:
        left = ours
        for node in siblings:
            found, left = super()._first_accepted(left / left.sum(), proposal, [node])
            if found is not None:
                return found, left
        return None, left


class TakesAnySibling(RejectionAcceptance):
    """Tries every sibling against the whole of the target's distribution."""

    def _first_accepted(self, ours: F64, proposal: Proposal, siblings: Sequence[int]) -> tuple[int | None, F64]:
        left = ours
        for node in siblings:
            found, left = super()._first_accepted(ours, proposal, [node])
            if found is not None:
                return found, left
        return None, left


@pytest.mark.parametrize("rule", [JudgesSiblingsAlike, TakesAnySibling])
def test_a_wrong_rule_for_siblings_is_found_out(rule: type[RejectionAcceptance]) -> None:
    assert tail_of_pairs(rule(Sampling(), 3), drawn_tree, (4,), Sampling(), 12_000) < FALSE_ALARM


@pytest.mark.parametrize("kind", [RejectionAcceptance, BlockAcceptance])
def test_more_siblings_stand_more_often(kind: type[RejectionAcceptance]) -> None:
    random = np.random.default_rng(1)
    rule = kind(Sampling(), 3)
    accepted = []
    for width in (1, 2, 4):
        verdicts: list[Verdict] = [
            rule.judge(TARGET[[0] + [1] * width], drawn_tree((width,), random), 0) for _ in range(1500)
        ]
        accepted.append(sum(len(verdict.path) for verdict in verdicts))
    assert accepted[0] < accepted[1] < accepted[2]
