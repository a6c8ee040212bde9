"""STAND: a draft made of n-grams, with the level above's own probabilities after the last tokens, averaged.

    mxconv generate PACKAGE --draft examples/papers/stand.py:StandKind --prompt TEXT --check

Source:
    Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (arXiv 2506.04708): n-grams of
    logits and Gumbel top-k. Its trees have a shape fitted to data; here the likeliest nodes are the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Self

import numpy as np

from mxconv.arrays import F32, F64
from mxconv.drafts.kind import NUM_CANDIDATES, LookUp, LookUpKind, Parameter
from mxconv.package.level_record import LevelBase, UpTo64
from mxconv.speculation.acceptance import Acceptance, GreedyAcceptance
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.proposal import Proposal, likeliest
from mxconv.speculation.statistics import LevelStatistics

MOST_NGRAMS = 2**17  # under 100 MB; those that were seen longest ago make room

Ngram = tuple[int, ...]
State = tuple[Ngram, int]  # the last tokens, and the position of the next one


@dataclass(frozen=True, slots=True)
class _Seen:
    """What followed an n-gram: the likeliest tokens, best first, averaged over `count` places."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    count: int


class Stand(LookUp[State]):
    """A table of n-grams, filled with every verification and kept from one prompt to the next.

    The longest n-gram at the end of a text that was seen before counts. The probabilities after it are ranked by the
    rule of acceptance, with its noise where there is some, which is drawing without replacement. Proposals are taken
    for certain, which keeps every rule exact. A token's chance is the softmax of the ranking.

    `max_ngram` is the number of tokens of the longest n-gram, `num_candidates` that of those remembered after each.
    """

    def __init__(
        self, statistics: LevelStatistics, max_ngram: int = 4, num_candidates: int = 8, confidence: float = 0.4
    ) -> None:
        super().__init__(statistics, confidence)
        self.acceptance: Acceptance = GreedyAcceptance()  # of the run
        self.max_ngram, self.num_candidates = max_ngram, num_candidates
        self._seen: dict[Ngram, _Seen] = {}  # the one seen last is last

    def of_text(self, statistics: LevelStatistics, acceptance: Acceptance) -> Self:
        made = super().of_text(statistics, acceptance)
        made.acceptance = acceptance
        return made

    def state(self, context: Sequence[int]) -> State:
        return tuple(context[-self.max_ngram :]), len(context)

    def continuations(self, state: State) -> list[tuple[int, float, State]]:
        """Candidates after the longest n-gram, the likeliest first."""
        end, position = state
        seen = next((self._seen[end[-n:]] for n in range(len(end), 0, -1) if end[-n:] in self._seen), None)
        if seen is None:
            return []
        chances = zip(seen.tokens, self._chances(seen, position).tolist(), strict=True)
        found = [(token, chance, (self._moved_on(end, token), position + 1)) for token, chance in chances]
        return sorted(found, key=lambda candidate: -candidate[1])

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Remember every row after the n-grams at the end of its own path."""
        ends = [self.state(context)[0]]
        for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
            ends.append(self._moved_on(ends[parent + 1], token))
        tokens, probabilities = likeliest(logits, self.num_candidates)
        for end, best, shares in zip(ends, tokens.tolist(), probabilities.tolist(), strict=True):
            if isfinite(sum(shares)):
                new = _Seen(tuple(best), tuple(shares), 1)
                for length in range(1, len(end) + 1):
                    self._remember(end[-length:], new)

    def _remember(self, ngram: Ngram, new: _Seen) -> None:
        known = self._seen.pop(ngram, None)
        if known is None and len(self._seen) >= MOST_NGRAMS:
            del self._seen[next(iter(self._seen))]
        self._seen[ngram] = new if known is None else _average(known, new)

    def _moved_on(self, end: Ngram, token: int) -> Ngram:
        return (*end, token)[-self.max_ngram :]

    def _chances(self, seen: _Seen, position: int) -> F64:
        """The chance of each of these tokens that the level above chooses it at a position."""
        with np.errstate(divide="ignore"):  # a token that cannot come
            logits = np.log(np.array(seen.probabilities, np.float32))
        ranking = self.acceptance.ranking(logits, position, np.array(seen.tokens))
        greatest = ranking.max()
        weights = np.exp(ranking - greatest) if np.isfinite(greatest) else np.zeros(len(ranking))
        chances: F64 = weights * (min(sum(seen.probabilities), 1.0) / max(weights.sum(), 1.0))
        return chances


def _average(known: _Seen, new: _Seen) -> _Seen:
    """Over all places; a token that was not among the likeliest somewhere had no probability there."""
    share = 1 / (known.count + 1)
    mean = {token: (1 - share) * p for token, p in zip(known.tokens, known.probabilities, strict=True)}
    for token, p in zip(new.tokens, new.probabilities, strict=True):
        mean[token] = mean.get(token, 0.0) + share * p
    best = sorted(mean.items(), key=lambda item: (-item[1], item[0]))[: len(new.tokens)]
    return _Seen(tuple(token for token, _ in best), tuple(p for _, p in best), known.count + 1)


class StandRecord(LevelBase):
    """Its parameters: tokens of the longest n-gram, and the number of candidates after each."""

    max_ngram: UpTo64 | None = None
    num_candidates: UpTo64 | None = None


class StandKind(LookUpKind):
    """`stand.py:StandKind,max_ngram=4,num_candidates=8`."""

    name = "stand"
    record_type = StandRecord
    parameters = (Parameter("max_ngram", 1, 64, default=4), NUM_CANDIDATES)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        longest, number = loaded.record.max_ngram or 4, loaded.record.num_candidates or 8
        return Stand(LevelStatistics(loaded.name), longest, min(number, vocab_size), confidence).of_text
