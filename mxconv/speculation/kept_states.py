"""Hidden states of the tokens that a cache holds, for drafts that read them."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.engine.states import Reads, States

FIRST_ROOM = 256  # tokens


class KeptStates:
    """The states that some drafts read, a row a token; nothing is asked for and nothing kept while nobody reads."""

    def __init__(self) -> None:
        self.reads = Reads()
        self._values: F32 = np.empty((0, 0, 0), np.float32)  # (num_states, room, hidden_size)
        self._numbers: I64 = np.empty(0, np.int64)  # (room,)
        self._num_written = 0

    def want(self, reads: Reads) -> None:
        """Keep these too, of every token from the first on: before any is evaluated."""
        self.reads |= reads

    def request(self) -> States | None:
        """What a pass should fill in."""
        return States(self.reads.layers, self.reads.normed_last) if self.reads.num_states else None

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
        """(stop,) int64: of the first tokens each, which of all states that were ever written here its are.

        What a draft has made of a token's states stands while the number is the same: another model may have evaluated
        the same token in between.
        """
        return self._numbers[:stop].copy()

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the tokens behind the first `start`, keep some in the order given."""
        if self.reads.num_states:
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
