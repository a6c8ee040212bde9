"""Hidden states of the tokens that a cache holds, for drafts that read them."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.model.states import Reads, States

FIRST_ROOM = 256  # tokens


class KeptStates:
    """The states that some drafts read, a row a token; nothing is asked for and nothing kept while nobody reads."""

    def __init__(self) -> None:
        self.reads = Reads()
        self._values: F32 = np.empty((0, 0, 0), np.float32)  # (num_states, room, hidden_size)

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
        self._values[:, start : start + num_rows] = states.values

    def read(self, reads: Reads, start: int, stop: int) -> F32:
        """(num_states, stop - start, hidden_size) float32: what a draft reads of some tokens."""
        return self._values[reads.places(self.reads), start:stop]

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the tokens behind the first `start`, keep some in the order given."""
        if self.reads.num_states:
            self._values[:, start : start + len(rows)] = self._values[:, [start + row for row in rows]]

    def saved(self, start: int, stop: int) -> F32:
        """A copy of the states of some tokens, for `restore`."""
        return self._values[:, start:stop].copy()

    def restore(self, start: int, saved: F32) -> None:
        if saved.size:
            self._values[:, start : start + saved.shape[1]] = saved
