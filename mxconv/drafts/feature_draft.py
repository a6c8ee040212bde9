"""Readers that go on with features of their own, such as EAGLE-3 heads and MTP layers, and how they draft."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, I64
from mxconv.engine.cache import KVCache
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import MOST_ROWS, GrownTree, Tree, TreeLimits
from mxconv.kernels.matrix import Matrix
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.reader import Reader

if TYPE_CHECKING:
    from mxconv.engine.native_decoder import NativePairs

MOST_TOKENS = MOST_ROWS  # of a proposal

Result = TypeVar("Result")


class FeatureReader(Reader, ABC):
    """A network that takes in pairs: a token, and a *feature* of the token before it.

    Features of tokens that the target has evaluated are made of its states; after them the network feeds itself with
    its own.
    """

    layers: ModelConfig  # of its own layers
    embedding: Matrix
    grower: "NativePairs | None" = None  # of trees in one call

    def text_cache(self) -> KVCache:
        return self.new_cache()

    def new_cache(self) -> KVCache:
        """An empty cache for the pairs of one text: that of token i + 1 is at place i."""
        return KVCache(self.layers)

    def knows_any(self, vocab_size: int) -> bool:
        """Whether it can propose one of the first tokens of the target's vocabulary."""
        return True

    @abstractmethod
    def fuse(self, states: F32) -> F32:
        """(n, hidden_size) float32: the features of tokens, from states (num_states, n, hidden size of the target)."""

    @abstractmethod
    def made(self, embedded: F32, features: F32, rows: SequenceRows, positions: Positions) -> F32:
        """(n, hidden_size) float32: the features of n tokens, from their embeddings and the features before them."""

    @abstractmethod
    def logits(self, features: F32) -> F32:
        """(n, vocab_size) float32: of the target's tokens, minus infinity for those that it cannot propose."""

    def advance(self, features: F32, tokens: Sequence[int], cache: KVCache, tree: Tree | None = None) -> F32:
        """Evaluate pairs after those in the cache, and advance it by them; a pair is at its token's position.

        Args:
            features: (n, hidden_size), each of the token before.
            tokens: n ids of the target's vocabulary.
            cache: as `new_cache` makes it.
            tree: of the pairs; None for a chain.

        Returns:
            (n, hidden_size) float32: the features of the tokens.
        """
        rows = SequenceRows(tokens, cache, tree)
        positions = Positions([place + 1 for place in rows.positions])
        cache.reserve(len(tokens))
        made = self.made(self.embedding.rows(np.array(tokens, np.intp)), features, rows, positions)
        cache.advance(len(tokens))
        return made


class FeatureDraft(PassDraft):
    """Drafts by a pass a token, or a depth of a tree; the first evaluates what was accepted since."""

    def __init__(self, head: FeatureReader, inputs: DraftInputs) -> None:
        super().__init__(inputs)
        inputs.session.states.want(head.reads)
        self._head = head
        self._knows_any = head.knows_any(inputs.vocab_size)
        self._cache = head.new_cache()
        # of the pairs in the cache that are of the text: the numbers of the states, and the tokens after them
        self._numbers: I64 = np.empty(0, np.int64)
        self._tokens: I64 = np.empty(0, np.int64)
        self._features: F32 = np.empty((0, 0), np.float32)  # at the end of the context; then, a row each

    def most_tokens(self, context: Sequence[int]) -> int:
        can_read = self._knows_any and self.inputs.has_states_of(context, self._head.sizes.vocab_size)
        return MOST_TOKENS if can_read else 0

    def begin(self, context: Sequence[int]) -> F32:
        """Evaluate the accepted tokens that are not in the cache, and those that the level above evaluated again."""

        def evaluate(features: F32, tokens: Sequence[int]) -> F32:
            self._features = self._head.advance(features, tokens, self._cache)[-1:]
            return self._logits(self._features)

        with self.statistics.timed_pass():
            return self._read(context, evaluate)

    def grow_at_once(self, context: Sequence[int], limits: TreeLimits) -> GrownTree | None:
        grower, size, begin = self._head.grower, self.inputs.vocab_size, self.statistics.clock()
        if grower is None:
            return None
        grown = self._read(context, lambda features, tokens: grower.grow(features, tokens, self._cache, size, limits))
        self._cache.truncate(len(context) - 1)
        self.statistics.seconds += self.statistics.clock() - begin
        self.statistics.num_forwards += grown.num_passes
        return grown

    def _read(self, context: Sequence[int], evaluate: Callable[[F32, Sequence[int]], Result]) -> Result:
        """What is made of the features and tokens of pairs that are not in the cache, which it adds there."""
        states = self.inputs.session.states
        numbers, tokens = states.numbers(len(context) - 1), np.array(context[1:], np.int64)
        start = min(num_shared(self._numbers, numbers), num_shared(self._tokens, tokens), len(tokens) - 1)
        self._cache.truncate(start)
        self._numbers, self._tokens = self._numbers[:start], self._tokens[:start]
        with np.errstate(over="ignore", invalid="ignore"):
            features = self._head.fuse(states.read(self._head.reads, start, len(tokens)))
            made = evaluate(features, context[start + 1 :])
        self._numbers, self._tokens = numbers, tokens
        return made

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        above = self._features[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        with self.statistics.timed_pass(), np.errstate(over="ignore", invalid="ignore"):
            features = self._head.advance(above, tokens, self._cache, tree)
            self._features = np.concatenate([self._features, features])
            return self._logits(features)

    def _logits(self, features: F32) -> F32:
        return self._head.logits(features)[:, : self.inputs.vocab_size]


def num_shared(ours: I64, theirs: I64) -> int:
    """Leading numbers that are the same."""
    length = min(len(ours), len(theirs))
    differ = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differ[0]) if len(differ) else length
