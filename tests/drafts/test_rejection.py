"""Which tokens stand by rejection, one by one or as blocks: every level keeps its own distribution.

Chi-square tests count as failed below a tail of 1e-6, the probability of a false alarm of each; their seeds are fixed,
so that what passes once always passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from markov_levels import markov, pairs_of, tables
from tiny_levels import noisy_copy, target_level

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.acceptance import RejectionAcceptance
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.round import Level
from mxconv.speculation.selection import Accept, Selection
from mxconv.text.distribution import Sampling, distribution

PROMPT = [3, 1, 4, 1, 5, 9]
RULES = pytest.mark.parametrize("rule", [RejectionAcceptance, BlockAcceptance])


@dataclass
class Overheard(Draft):
    """Passes proposals on and counts what followed which token."""

    inner: Draft
    vocab_size: int
    counts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.vocab_size, self.vocab_size))
        self.statistics = self.inner.statistics

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        proposal = self.inner.propose(context, limits)
        np.add.at(self.counts, ([context[-1], *proposal.tokens[:-1]], proposal.tokens), 1)
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.inner.observe(context, proposal, logits)


@dataclass
class Tails:
    """For each level and for the first two tokens: the tail of what came."""

    of_levels: list[float]
    of_pairs: float
    acceptance_rates: list[float | None]

    @property
    def all(self) -> list[float]:
        return [*self.of_levels, self.of_pairs]


NUM_TEXTS = 600


def tails(
    made: list[np.ndarray],
    sampling: Sampling,
    confidence: Sequence[float] = (0.0, 0.0),
    rule: Callable[[Sampling, int], RejectionAcceptance] = RejectionAcceptance,
) -> Tails:
    """Many short texts, all from token 0."""
    levels = [markov(f"level {number}", table) for number, table in enumerate(made)]
    acceptance = rule(sampling, 99)
    hierarchy = Hierarchy(levels, [3, 2][: len(levels) - 1], list(confidence)[: len(levels) - 1])
    statistics = hierarchy.begin().trace.statistics
    target = hierarchy.link(statistics, acceptance)
    vocab_sizes = [min(len(table) for table in made[: number + 1]) for number in range(len(made))]
    overheard: list[Overheard] = []
    level: Level = target
    for _ in vocab_sizes[1:]:
        (below,) = level.drafts
        overheard.append(Overheard(below, len(made[0])))
        object.__setattr__(level, "drafts", [overheard[-1]])
        if isinstance(below, ModelDraft):
            level = below.level
    pairs = pairs_of(target, len(made[0]), NUM_TEXTS)
    shares = [_shares(table, sampling, size, len(made[0])) for table, size in zip(made, vocab_sizes, strict=True)]
    of_levels = [
        tail_of_counts(heard.counts[rows], share[rows])
        for heard, share in zip(overheard, shares[1:], strict=True)
        if (rows := heard.counts.any(axis=1)).any()
    ]
    of_pairs = tail_of_counts(pairs.ravel(), (shares[0][0][:, None] * shares[0]).ravel())
    return Tails(of_levels, of_pairs, [level.acceptance_rate for level in statistics[1:]])


def _shares(table: np.ndarray, sampling: Sampling, vocab_size: int, width: int) -> np.ndarray:
    """What a level draws after each token that it knows, rows that it does not know left empty."""
    found = np.zeros((width, width))
    for token, row in enumerate(table[:width]):
        found[token, :vocab_size] = distribution(row[:vocab_size], sampling)
    return found


def unlike(*factors: float) -> list[np.ndarray]:
    return [factor * tables()[0] for factor in factors]


def with_unknown_tokens() -> list[np.ndarray]:
    """Logits of minus infinity: the target says such tokens, and a level in the middle never does."""
    made = tables()
    made[1][:, [1, 3]] = made[2][:, [0, 3]] = -np.inf
    return made


@RULES
@pytest.mark.parametrize(
    ("made", "confidence", "sampling", "rates"),
    [
        (tables(), (0.0, 0.0), Sampling(), (0.2, 0.98)),  # both outcomes come often
        (tables(), (0.0, 0.0), Sampling(1.2, top_p=0.8), (0.2, 0.98)),
        (tables((5, 7, 6), 1.5), (0.5, 0.0), Sampling(0.7), (0.0, 1.0)),  # of more rows than the level above
        (tables((7, 5, 5), 1.5), (0.0, 0.45), Sampling(1.0, top_k=3), (0.0, 1.0)),
        (tables((5, 6, 8), 1.5), (1.0, 1.0), Sampling(), (0.0, 1.0)),
        (tables((8, 6, 5), 1.5), (0.0, 0.0), Sampling(), (0.0, 1.0)),
        (with_unknown_tokens(), (0.0, 0.0), Sampling(), (0.1, 0.98)),
        (with_unknown_tokens(), (0.0, 0.0), Sampling(0.7, top_k=4), (0.1, 0.98)),
        (unlike(1, 1, 1), (0.0, 0.0), Sampling(), (1.0, 1.0)),
        (unlike(1, -2, 3), (0.0, 0.0), Sampling(), (0.0, 1.0)),
    ],
)
def test_every_level_keeps_its_own_distribution(
    made: list[np.ndarray],
    confidence: tuple[float, float],
    sampling: Sampling,
    rates: tuple[float, float],
    rule: type[RejectionAcceptance],
) -> None:
    found = tails(made, sampling, confidence, rule)
    assert min(found.all) > FALSE_ALARM
    least, most = rates
    assert all(rate is not None and least <= rate <= most for rate in found.acceptance_rates)


@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_equal_seeds_give_equal_texts_and_others_others(accept: Accept) -> None:
    hierarchy = Hierarchy([target_level(), noisy_copy(noise=0.3)], [4], [0.0])
    texts = [
        hierarchy.generate(PROMPT, 30, selection=Selection(Sampling(), accept, seed)).token_ids for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@RULES
def test_what_is_left_is_nothing_where_rounding_made_both_equal(rule: type[RejectionAcceptance]) -> None:
    logits = np.array([[0.0, 0.0]], np.float32)
    logits = np.repeat(logits, 2, 0)
    for seed in range(20):
        proposal = Proposal([1], [np.array([0.5, 0.5 + 1e-9])])
        assert rule(Sampling(), seed).judge(logits, proposal, 3).tokens
