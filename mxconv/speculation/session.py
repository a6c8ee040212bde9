"""A KV cache that knows its tokens, so that rolling back to a common prefix is one comparison."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.sequence_rows import Reads, SequenceRows, States
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.speculation.passes import OWN_PASSES, Passes


def common_length(ours: list[int], theirs: Sequence[int]) -> int:
    """The number of tokens that two texts begin with in common: by halving, so that whole lists are compared."""
    low, high = 0, min(len(ours), len(theirs))
    middle = high  # all of it, mostly
    while low < high:
        if ours[low:middle] == list(theirs[low:middle]):
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


@contextmanager
def borrowed(cache: KVCache, start: int, count: int) -> Iterator[KVCache]:
    """The cache cut to `start` positions, which are reachable, for a pass over `count` tokens; then as it was."""
    length = cache.length
    states = nullcontext() if cache.states is None else cache.states.borrow(start, length)
    rows = range(start, min(start + count, cache.capacity))
    kept = cache.take(rows)
    try:
        with states:
            cache.truncate(start)
            try:
                yield cache
            finally:
                cache.put(rows, kept)
                cache.truncate(start)
    finally:
        cache.advance(length - start)


FIRST_ROOM = 256  # tokens


class HiddenStates:
    """The states that some drafts read, a row a token; empty while no draft reads any."""

    def __init__(self) -> None:
        self.reads = Reads()
        self.num_states = 0
        self._values: F32 = np.empty((0, 0, 0), np.float32)  # (num_states, room, hidden_size)
        self._numbers: I64 = np.empty(0, np.int64)  # (room,)
        self._num_written = 0

    def want(self, reads: Reads) -> None:
        """Keep these too, of every token from the first on: before any is evaluated."""
        self.reads |= reads
        self.num_states = self.reads.num_states

    def request(self) -> States | None:
        """What a pass should fill in."""
        return States(self.reads.layers, self.reads.normed_last) if self.num_states else None

    def write(self, start: int, states: States) -> None:
        """Keep the states of a pass, of tokens from `start` on."""
        assert states.values is not None
        num_states, num_rows, hidden_size = states.values.shape
        if start + num_rows > self._values.shape[1]:
            room = max(FIRST_ROOM, 2 * self._values.shape[1], start + num_rows)
            grown = np.empty((num_states, room, hidden_size), np.float32)
            if start:
                grown[:, :start] = self._values[:, :start]
            self._values = grown
            self._numbers = np.concatenate([self._numbers[:start], np.empty(room - start, np.int64)])
        self._values[:, start : start + num_rows] = states.values
        self._numbers[start : start + num_rows] = self._num_written + np.arange(num_rows)
        self._num_written += num_rows

    def read(self, reads: Reads, start: int, stop: int) -> F32:
        """(num_states, stop - start, hidden_size) float32: what a draft reads of some tokens."""
        return self._values[reads.places(self.reads), start:stop]

    def numbers(self, stop: int) -> I64:
        """(stop,) int64: the serial number of each token's states among all that were ever written here.

        What a draft made of a token's states is valid while the number is the same: another model may have evaluated
        the same token in between.
        """
        return self._numbers[:stop].copy()

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Keep some of the tokens after the first `start`, in the order given."""
        if self.num_states:
            places = [start + row for row in rows]
            self._values[:, start : start + len(rows)] = self._values[:, places]
            self._numbers[start : start + len(rows)] = self._numbers[places]

    def saved(self, start: int, stop: int) -> tuple[F32, I64]:
        """A copy of the states of some tokens, with their numbers, for `restore`."""
        return self._values[:, start:stop].copy(), self._numbers[start:stop].copy()

    def restore(self, start: int, saved: tuple[F32, I64]) -> None:
        values, numbers = saved
        if values.size:
            self._values[:, start : start + values.shape[1]] = values
            self._numbers[start : start + len(numbers)] = numbers


class Session:
    """The tokens whose keys and values a cache holds, and the states of them that drafts read.

    The target and the drafts that share its cache have one session; a model with a cache of its own has its own.
    """

    def __init__(self, cache: KVCache, passes: Passes = OWN_PASSES) -> None:
        self.cache = cache
        self.passes = passes
        self.tokens: list[int] = []
        self.states = HiddenStates()
        self._num_published = 0  # pages of its text that other texts can begin with

    def align(self, context: Sequence[int], owns_cache: bool = False) -> list[int]:
        """Roll back to the longest prefix shared with `context`, its last token left out.

        Args:
            context: tokens after which something is to be proposed or verified.
            owns_cache: whether it is the caller's own, and what drafts borrowed is given back. Texts that begin alike
                then share pages; a text whose hidden states are read publishes pages and adopts none, as they hold no
                such states.

        Returns:
            The tokens of `context` that are not in the cache: at least the last, since its logits are wanted, and all
            where recurrent states that far back are gone.
        """
        if owns_cache and not self.tokens and not self.states.num_states:
            self.tokens = list(context[: self.passes.adopt(self.cache, context)])
            self._num_published = len(self.tokens) // PAGE
        length = self.rewind(min(common_length(self.tokens, context), len(context) - 1))
        if owns_cache and length // PAGE > self._num_published:
            self.passes.publish(self.cache, self.tokens)
            self._num_published = length // PAGE
        return list(context[length:])

    @contextmanager
    def borrow(self, context: Sequence[int]) -> Iterator[None]:
        """For a draft that writes its own keys and values after a context; afterwards all is as it was, bit for bit."""
        tokens = list(self.tokens)
        start = self.cache.reachable(min(common_length(tokens, context), len(context) - 1))
        if start == len(tokens) and self.cache.states is None:  # nothing is overwritten
            try:
                yield
            finally:
                self.tokens = tokens
                self.cache.truncate(start)
            return
        states = self.states.saved(start, len(tokens))
        try:
            with borrowed(self.cache, start, len(tokens) - start):
                del self.tokens[start:]
                yield
        finally:
            self.tokens = tokens
            self.states.restore(start, states)

    def feed(self, decoder: Decoder, tokens: Sequence[int], num_logits: int, tree: Tree | None = None) -> F32:
        """Evaluate tokens after those in the cache.

        Args:
            decoder: the model.
            tokens: the rows of the pass.
            num_logits: the number of the last rows whose logits are wanted.
            tree: of the rows; None for a chain. After a tree, `keep` a path before anything else.

        Returns:
            (num_logits, vocab_size): the logits of the last tokens.
        """
        states = self.states.request()
        logits = self.passes.forward(decoder, SequenceRows(tokens, self.cache, tree, num_logits, states))
        if states is not None:
            self.states.write(len(self.tokens), states)
        self.tokens += tokens
        return logits

    def grow(
        self, decoder: Decoder, tokens: Sequence[int], vocab_size: int, limits: TreeLimits, is_borrowed: bool = False
    ) -> GrownTree | None:
        """Evaluate tokens after those in the cache, and a tree below them, as `Decoder.grow`; then `keep` a path.

        None, and nothing has changed, where other texts share or wait for the passes, or hidden states are read that
        will stay: not those of a cache that is borrowed.
        """
        is_read = self.states.num_states > 0 and not is_borrowed
        if is_read or not self.passes.are_at_once(decoder, len(tokens)):
            return None
        grown = decoder.grow(tokens, self.cache, vocab_size, limits)
        if grown is not None:
            self.tokens += [*tokens, *(grown.tokens[node] for node in grown.rows)]
        return grown

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Keep the rows of one path after the first `start` tokens and forget the others."""
        self.cache.keep(start, rows)
        self.states.keep(start, rows)
        self.tokens[start:] = [self.tokens[start + row] for row in rows]

    def holds(self, context: Sequence[int]) -> bool:
        """Whether all tokens but the last are in the cache, and nothing else."""
        return self.tokens == list(context[:-1])

    def rewind(self, length: int) -> int:
        """Forget all but the first `length` tokens, or all where the states there are gone; how many are left."""
        if length == len(self.tokens) and self.cache.states is None:
            return length
        length = self.cache.reachable(length)
        self.cache.truncate(length)
        del self.tokens[length:]
        self._num_published = min(self._num_published, length // PAGE)
        return length
