"""An EAGLE-3 head as a draft: it has read the states of all tokens that stand, and goes on with features of its own."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.model.cache import KVCache
from mxconv.model.readers.eagle3 import Eagle3
from mxconv.model.tree import Tree
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.draft import Proposal
from mxconv.speculative.level import top_probability
from mxconv.speculative.model_tree import grow_by_passes
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics


class Eagle3Draft:
    """Proposes by a pass a token, or a depth of a tree; the first one takes in what the level above has evaluated.

    Args:
        head: the model.
        session: of the level that it reads; its states are kept from now on.
        acceptance: the rule of the run.
        statistics: what it did.
        vocab_size: ids that the level above has too.
        confidence: a chain stops behind the first token that is less probable, a tree before a pass none of whose
            nodes is as probable; where no floor is given.
    """

    def __init__(
        self,
        head: Eagle3,
        session: Session,
        acceptance: Acceptance,
        statistics: LevelStatistics,
        vocab_size: int,
        confidence: float,
    ) -> None:
        session.states.want(head.reads)
        self.statistics = statistics
        self._head = head
        self._session = session
        self._acceptance = acceptance
        self._vocab_size = vocab_size
        self._confidence = confidence
        self._knows_any = bool((head.tokens < vocab_size).any())
        self._cache = head.new_cache()
        # of the pairs in the cache that are of the text: the numbers of the states, and the tokens behind them
        self._numbers: I64 = np.empty(0, np.int64)
        self._tokens: I64 = np.empty(0, np.int64)

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A token a pass; none where the states of the context are not there."""
        proposal = Proposal([])
        if num_tokens < 1 or not self._can_read(context):
            return proposal
        passes, chance = self._passes(context), 1.0
        logits = passes.first[0]
        for depth in range(num_tokens):
            if depth:
                logits = passes.evaluate(proposal.tokens[-1:], Tree(range(-1, depth - 1), depth - 1))[0]
            guess = self._acceptance.guesses(logits, len(context) + depth, 0.0, 1)
            if not guess.tokens:
                break
            proposal.tokens.extend(guess.tokens)
            if guess.distribution is not None:
                proposal.distributions.append(guess.distribution)
            proposal.probabilities.append(top_probability(logits))
            chance *= proposal.probabilities[-1]
            if not (proposal.probabilities[-1] >= self._confidence if floor is None else chance >= floor):
                break
        return proposal

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A pass a depth, over all nodes that may go on."""

        def goes_on(chance: float, own_chance: float) -> bool:
            return own_chance >= self._confidence if floor is None else chance >= floor

        if not floors or most_depth < 1 or not self._can_read(context):
            return Proposal([], parents=[])
        passes = self._passes(context)
        proposal, _ = grow_by_passes(
            passes.first[0], len(context), passes.evaluate, self._acceptance, most_depth, floors, goes_on
        )
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """What it reads is kept with the session."""

    def _can_read(self, context: Sequence[int]) -> bool:
        """Whether the states of all tokens but the last are there, one at least, and it knows their embeddings."""
        return (
            self._knows_any
            and len(context) > 1
            and self._session.holds(context)
            and max(context) < self._head.vocab_size
        )

    def _passes(self, context: Sequence[int]) -> "_Passes":
        """Take in what stands of the text and is not in the cache, and what was evaluated again since."""
        states = self._session.states
        numbers, tokens = states.numbers(len(context) - 1), np.array(context[1:], np.int64)
        start = min(_num_shared(self._numbers, numbers), _num_shared(self._tokens, tokens), len(tokens) - 1)
        self._cache.truncate(start)
        self._numbers, self._tokens = self._numbers[:start], self._tokens[:start]
        features = self._head.fuse(states.read(self._head.reads, start, len(tokens)))
        passes = _Passes(self._head, self._cache, self.statistics, self._vocab_size, features, context[start + 1 :])
        self._numbers, self._tokens = numbers, tokens
        return passes


class _Passes:
    """The passes behind one context.

    Args:
        head: the model.
        cache: its keys and values, of the pairs before; drafted ones are left behind those of the context.
        statistics: of the draft.
        vocab_size: of the logits.
        features: (n, hidden_size) before the last n tokens of the context.
        tokens: these tokens.
    """

    def __init__(
        self,
        head: Eagle3,
        cache: KVCache,
        statistics: LevelStatistics,
        vocab_size: int,
        features: F32,
        tokens: Sequence[int],
    ) -> None:
        self._head = head
        self._cache = cache
        self._statistics = statistics
        self._vocab_size = vocab_size
        with statistics.forward():
            self._features = head.advance(features, tokens, cache)[-1:]  # of the context; then, a row each
            self.first = self._logits(self._features)

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows."""
        above = self._features[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        with self._statistics.forward():
            features = self._head.advance(above, tokens, self._cache, tree)
            self._features = np.concatenate([self._features, features])
            return self._logits(features)

    def _logits(self, features: F32) -> F32:
        return self._head.logits(features)[:, : self._vocab_size]


def _num_shared(ours: I64, theirs: I64) -> int:
    """Leading numbers that are the same."""
    length = min(len(ours), len(theirs))
    differ = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differ[0]) if len(differ) else length
