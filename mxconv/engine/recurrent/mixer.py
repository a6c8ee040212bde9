"""What the mixers with a state have in common: rows of several sequences, each walked along its path."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.forest import SequenceRows, spans
from mxconv.engine.positions import Positions
from mxconv.engine.recurrent.layer_state import LayerState
from mxconv.engine.recurrent.state_cache import StateCache
from mxconv.engine.sink_window import SinkWindow
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class RecurrentMixer(ABC):
    """A mixer whose rows are evaluated one after another along their paths; `index` is its layer's number.

    Matrices multiply all rows of a pass together, `step` one row at a time, always the same arithmetic.
    """

    index: int

    @property
    @abstractmethod
    def matrices(self) -> tuple[Matrix, ...]:
        """All that a pass multiplies by."""

    @abstractmethod
    def split(self, h: F32) -> tuple[F32, F32 | None]:
        """Of what it takes in: the rows' inputs, (num_tokens, input_size), and what only `finish` needs."""

    @abstractmethod
    def step(self, state: LayerState, inputs: F32) -> F32:
        """What one row's input does to the state, which is changed, and what is read of it."""

    @abstractmethod
    def finish(self, made: F32, aside: F32 | None) -> F32:
        """(num_tokens, hidden_size) of what `step` gave of each row."""

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, sink_window: SinkWindow | None = None
    ) -> F32:
        """What it adds to rows, (num_tokens, hidden_size), given what it takes in of them."""
        inputs, aside = self.split(h)
        made = [
            self._states(rows).run(self._slot(rows), inputs[span], self.step)
            for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True)
        ]
        return self.finish(np.concatenate(made), aside)

    def follow(self, sequences: Sequence[SequenceRows]) -> None:
        """For a draft that skips it: the states still go with the text."""
        for rows in sequences:
            self._states(rows).follow(self._slot(rows), self.step)

    def _slot(self, rows: SequenceRows) -> int:
        return rows.cache.slots[self.index]

    def _states(self, rows: SequenceRows) -> StateCache:
        assert rows.cache.states is not None, "a cache of this model"
        return rows.cache.states
