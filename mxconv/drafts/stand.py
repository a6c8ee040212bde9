"""A draft made of n-grams: the level above's own probabilities after the last tokens, averaged over their places."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from mxconv.arrays import F32, F64
from mxconv.drafts.acceptance import Acceptance, GreedyAcceptance
from mxconv.drafts.guesses import likeliest
from mxconv.drafts.kind import NUM_CANDIDATES, DraftSpec, LoadedLevel, LookUpKind, Parameter, Proposer
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.trees import grow_best_first
from mxconv.errors import ModelError
from mxconv.package.level_record import StandRecord

MOST_NGRAMS = 2**17  # under 100 MB; those that were seen longest ago make room

Ngram = tuple[int, ...]
State = tuple[Ngram, int]  # the last tokens, and the position of the next one


@dataclass(frozen=True, slots=True)
class _Seen:
    """What followed an n-gram: the likeliest tokens, best first, averaged over `count` places."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    count: int


class Stand:
    """A table of n-grams, filled with every verification and kept from one prompt to the next.

    Of the n-grams at the end of a text the longest that was seen counts. The probabilities after it are ranked by the
    rule of acceptance: as they are, or, where tokens are drawn with noise that depends on the position, with that very
    noise, which is drawing without replacement. Proposals are taken for certain, which keeps every rule exact. The
    chance of a token is the softmax of the ranking: that of being right where the level's own logits differ from those
    remembered by as much as one more noise.

    Args:
        statistics: what it did.
        vocab_size: logits a row of the level above.
        max_ngram: tokens of the longest n-gram.
        num_candidates: tokens remembered after each.
        confidence: a chain stops before the first token whose chance is below.

    Raises:
        ModelError: no vocabulary, no candidates or no n-grams.

    Source:
        Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (arXiv 2506.04708): n-grams of
        logits and Gumbel top-k. Its trees have a shape fitted to data; here the likeliest nodes are the tree.
    """

    def __init__(
        self,
        statistics: LevelStatistics,
        vocab_size: int,
        max_ngram: int = 4,
        num_candidates: int = 8,
        confidence: float = 0.4,
    ) -> None:
        if not 1 <= num_candidates <= vocab_size:
            raise ModelError(
                f"stand: {num_candidates} candidates; 1 to the vocabulary's {vocab_size} are required. "
                "Choose another number."
            )
        if max_ngram < 1:
            raise ModelError(f"stand: n-grams of up to {max_ngram} tokens; at least 1 is required. Choose more.")
        self.statistics = statistics
        self.acceptance: Acceptance = GreedyAcceptance()  # of the run
        self.max_ngram = max_ngram
        self.num_candidates = num_candidates
        self.confidence = confidence
        self._seen: dict[Ngram, _Seen] = {}  # the one seen last is last

    def of_text(self, statistics: LevelStatistics, acceptance: Acceptance) -> "Stand":
        """The same table, for one text among several that fill it."""
        made = copy.copy(self)
        made.statistics, made.acceptance = statistics, acceptance
        return made

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Up to `num_tokens` tokens; none after a token that nothing was seen after."""
        tokens: list[int] = []
        with self.statistics.forward():
            state = self._end(context)
            while len(tokens) < num_tokens:
                token, chance, state = max(self._continuations(state), key=_chance, default=(0, 0.0, state))
                if chance == 0.0 or chance < self.confidence:
                    break
                tokens.append(token)
        return Proposal(tokens)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """The likeliest tree of what was seen after the last tokens."""
        with self.statistics.forward():
            return grow_best_first(self._end(context), self._continuations, most_depth, floors)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Remember every row after the n-grams at the end of its own path."""
        parents = range(-1, len(proposal.tokens) - 1) if proposal.parents is None else proposal.parents
        ends = [self._end(context)[0]]
        for token, parent in zip(proposal.tokens, parents, strict=True):
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

    def _end(self, context: Sequence[int]) -> State:
        return tuple(context[-self.max_ngram :]), len(context)

    def _moved_on(self, end: Ngram, token: int) -> Ngram:
        return (*end, token)[-self.max_ngram :]

    def _continuations(self, state: State) -> Iterator[tuple[int, float, State]]:
        end, position = state
        lengths = range(len(end), 0, -1)
        seen = next((self._seen[end[-n:]] for n in lengths if end[-n:] in self._seen), None)
        if seen is not None:
            for token, chance in zip(seen.tokens, self._chances(seen, position).tolist(), strict=True):
                yield token, chance, (self._moved_on(end, token), position + 1)

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


def _chance(continuation: tuple[int, float, State]) -> float:
    return continuation[1]


class StandKind(LookUpKind):
    """`stand:max_ngram=4,num_candidates=8`."""

    name = "stand"
    record_type = StandRecord
    parameters = (Parameter("max_ngram", 1, 64), NUM_CANDIDATES)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        given = spec.parameters
        return {"max_ngram": given.get("max_ngram", 4), "num_candidates": given.get("num_candidates", 8)}

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        longest, number = loaded.record.max_ngram or 4, loaded.record.num_candidates or 8
        return Stand(LevelStatistics(loaded.name), vocab_size, longest, number, confidence).of_text


STAND = StandKind()
