"""A KV cache that knows its tokens, so that rolling back to a common prefix is one comparison."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.pages.slabs import PAGE
from mxconv.engine.tree import Tree
from mxconv.speculation.borrowed import borrowed
from mxconv.speculation.kept_states import KeptStates
from mxconv.speculation.passes import AT_ONCE, Passes


class Session:
    """The tokens whose keys and values a cache holds.

    The target and the draft that shares its cache have one session; a model with a cache of its own has its own.
    `states` are those of the same tokens, as far as a draft reads any.

    Args:
        cache: empty.
        passes: where the rows of its text are evaluated.
    """

    def __init__(self, cache: KVCache, passes: Passes = AT_ONCE) -> None:
        self.cache = cache
        self.passes = passes
        self.tokens: list[int] = []
        self.states = KeptStates()
        self._num_published = 0  # pages of its text that other texts can begin with

    def align(self, context: Sequence[int], is_sole: bool = False) -> list[int]:
        """Roll back to the longest prefix shared with `context`, its last token left out.

        Args:
            context: tokens behind which something is to be said.
            is_sole: one decoder wrote all that there is. Then texts that begin alike, as far as passes know any, share
                their beginnings; those whose hidden states are read give and do not take, as no page has such states.

        Returns:
            The tokens of `context` that are not in the cache: at least the last, since its logits are wanted.
            All of them where recurrent states that far back are gone.
        """
        if is_sole and not self.tokens and not self.states.reads.num_states:
            self.tokens = list(context[: self.passes.adopt(self.cache, context)])
            self._num_published = len(self.tokens) // PAGE
        length = self.rewind(self._num_shared(context))
        if is_sole and length // PAGE > self._num_published:
            self.passes.publish(self.cache, self.tokens)
            self._num_published = length // PAGE
        return list(context[length:])

    @contextmanager
    def lent(self, context: Sequence[int]) -> Iterator[None]:
        """For a draft that writes its own keys and values behind a context; afterwards all is as it was, bit for bit.

        A draft that hears the context through text may hear other tokens than the cache holds, or fewer.
        """
        start, tokens = self.cache.reachable(self._num_shared(context)), list(self.tokens)
        states = self.states.saved(start, len(tokens))
        try:
            with borrowed(self.cache, start, len(tokens) - start):
                del self.tokens[start:]
                yield
        finally:
            self.tokens = tokens
            self.states.restore(start, states)

    def feed(self, decoder: Decoder, tokens: Sequence[int], num_logits: int, tree: Tree | None = None) -> F32:
        """Evaluate tokens behind those in the cache.

        Args:
            decoder: the model.
            tokens: the rows of the pass.
            num_logits: of how many of the last.
            tree: where they hang; None makes them a chain. Behind a tree, `keep` a path before anything else.

        Returns:
            (num_logits, vocab_size): the logits of the last tokens.
        """
        states = self.states.request()
        logits = self.passes.forward(decoder, SequenceRows(tokens, self.cache, tree, num_logits, states))
        if states is not None:
            self.states.write(len(self.tokens), states)
        self.tokens += tokens
        return logits

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows behind the first `start` tokens, keep those of one path and forget the others."""
        self.cache.keep(start, rows)
        self.states.keep(start, rows)
        self.tokens[start:] = [self.tokens[start + row] for row in rows]

    def holds(self, context: Sequence[int]) -> bool:
        """Whether all tokens but the last are in the cache, and nothing else."""
        return self.tokens == list(context[:-1])

    def _num_shared(self, context: Sequence[int]) -> int:
        """Tokens of the longest prefix shared with `context`, its last token left out."""
        length = min(len(self.tokens), len(context) - 1)
        if self.tokens[:length] == list(context[:length]):  # nearly always, and long
            return length
        pairs = enumerate(zip(self.tokens, context, strict=False))
        return next(place for place, (ours, theirs) in pairs if ours != theirs)

    def rewind(self, length: int) -> int:
        """Forget all but the first `length` tokens, or all where the states there are gone; how many are left."""
        length = self.cache.reachable(length)
        self.cache.truncate(length)
        del self.tokens[length:]
        self._num_published = min(self._num_published, length // PAGE)
        return length
