"""A reader that goes on with features of its own as a draft: it has read the states of all accepted tokens."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.drafts.readers.reader import FeatureReader
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.trees import Evaluate
from mxconv.engine.cache import KVCache
from mxconv.engine.tree import MOST_ROWS, Tree

MOST_TOKENS = MOST_ROWS  # of a proposal


class FeatureDraft(ReadingDraft):
    """Proposes by a pass a token, or a depth of a tree; the first one takes in what the level above has evaluated.

    Args:
        head: the model.
        listener: for whom it drafts.
    """

    def __init__(self, head: FeatureReader, listener: Listener) -> None:
        super().__init__(head.reads, listener)
        self._head = head
        self._knows_any = head.knows_any(listener.vocab_size)
        self._cache = head.new_cache()
        # of the pairs in the cache that are of the text: the numbers of the states, and the tokens after them
        self._numbers: I64 = np.empty(0, np.int64)
        self._tokens: I64 = np.empty(0, np.int64)

    def most_tokens(self, context: Sequence[int]) -> int:
        """As many as wanted; none where it knows no token that may be said, or not the context's states and tokens."""
        can_read = (
            self._knows_any
            and len(context) > 1
            and max(context) < self._head.vocab_size
            and self.listener.session.holds(context)
        )
        return MOST_TOKENS if can_read else 0

    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """Take in the accepted tokens that are not in the cache, and what was evaluated again since."""
        states = self.listener.session.states
        numbers, tokens = states.numbers(len(context) - 1), np.array(context[1:], np.int64)
        start = min(_num_shared(self._numbers, numbers), _num_shared(self._tokens, tokens), len(tokens) - 1)
        self._cache.truncate(start)
        self._numbers, self._tokens = self._numbers[:start], self._tokens[:start]
        features = self._head.fuse(states.read(self._head.reads, start, len(tokens)))
        passes = _Passes(
            self._head, self._cache, self.statistics, self.listener.vocab_size, features, context[start + 1 :]
        )
        self._numbers, self._tokens = numbers, tokens
        return passes.first, passes.evaluate


class _Passes:
    """The passes after one context.

    Args:
        head: the model.
        cache: its keys and values, of the pairs before; drafted ones are left after those of the context.
        statistics: of the draft.
        vocab_size: of the logits.
        features: (n, hidden_size) before the last n tokens of the context.
        tokens: these tokens.
    """

    def __init__(
        self,
        head: FeatureReader,
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
            self.first: F32 = self._logits(self._features)[0]

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
