"""Readers that go on from features of their own: an EAGLE-3 head, an MTP module."""

from collections.abc import Sequence
from typing import Protocol

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.readers.reader import Reader
from mxconv.engine.tree import Tree


class FeatureReader(Reader, Protocol):
    """Takes in pairs: a token, and a *feature* of the token before it.

    Of tokens that the target has evaluated features are made of its states; behind them it feeds itself with its own.
    """

    def new_cache(self) -> KVCache:
        """For the pairs of one text."""
        ...

    def knows_any(self, vocab_size: int) -> bool:
        """Whether it can say one of the first tokens of the target's vocabulary."""
        ...

    def fuse(self, states: F32) -> F32:
        """The features of tokens that the target evaluated.

        Args:
            states: (num_states, n, hidden size of the target), as `reads` names them.

        Returns:
            (n, hidden_size) float32.
        """
        ...

    def advance(self, features: F32, tokens: Sequence[int], cache: KVCache, tree: Tree | None = None) -> F32:
        """Evaluate pairs behind those in the cache, and advance it by them.

        Args:
            features: (n, hidden_size), each of the token before.
            tokens: n ids of the target's vocabulary.
            cache: a place a pair: that of token i + 1 is place i.
            tree: where each pair hangs; None makes them a chain.

        Returns:
            (n, hidden_size) float32: the features of the tokens.
        """
        ...

    def logits(self, features: F32) -> F32:
        """(n, vocab_size) float32: of the target's tokens, minus infinity for those that it cannot say."""
        ...
