"""What a round waits for: rows of a model, to be evaluated together with those of other texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.passes import StageRows
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.states import States

Model = tuple[int, int]  # an object's id, and which of its parts
StageAnswer = tuple[F32, F32]  # states and logits, a row each
Answer = F32 | StageAnswer
Rows = TypeVar("Rows", SequenceRows, StageRows)


class Wanted(ABC, Generic[Rows]):
    """Rows of one text that a model is to evaluate, perhaps in pieces."""

    @property
    @abstractmethod
    def model(self) -> Model:
        """Rows of the same one are evaluated together."""

    @property
    @abstractmethod
    def num_left(self) -> int:
        """Rows that are to be evaluated."""

    @abstractmethod
    def next_rows(self, most: int) -> Rows:
        """The next piece, where it can be cut of at most so many rows."""

    @abstractmethod
    def took(self, piece: Rows) -> bool:
        """A piece was evaluated; whether it was the last."""

    @abstractmethod
    def evaluate(self, pieces: Sequence[Rows]) -> Sequence[Answer]:
        """Of several texts that want the same model.

        Raises:
            MxconvError: one of them is to blame; nothing has changed.
        """


AnyWanted = Wanted[Any]


@dataclass(eq=False)
class WantedRows(Wanted[SequenceRows]):
    """Rows that a text waits for. Those of a long chain are evaluated in pieces, the same bits.

    Args:
        decoder: of the rows.
        rows: all of them.
    """

    decoder: Decoder
    rows: SequenceRows
    num_done: int = 0
    _states: list[F32] = field(default_factory=list)

    @property
    def model(self) -> Model:
        return id(self.decoder), 0

    @property
    def num_left(self) -> int:
        return self.rows.num_rows - self.num_done

    def next_rows(self, most: int) -> SequenceRows:
        """Of a chain at most so many, and at least those that want logits, which stay together; of a tree all."""
        rows = self.rows
        count = self.num_left if rows.tree is not None else min(max(most, 1), self.num_left)
        if self.num_done + count > rows.num_rows - rows.num_wanted:
            count = self.num_left
        states = None if rows.states is None else States(rows.states.layers, rows.states.normed_last)
        is_last = count == self.num_left
        return SequenceRows(
            rows.token_ids[self.num_done : self.num_done + count],
            rows.cache,
            rows.tree,
            rows.num_wanted if is_last else 0,
            states,
        )

    def took(self, piece: SequenceRows) -> bool:
        self.num_done += piece.num_rows
        if piece.states is not None:
            assert piece.states.values is not None
            self._states.append(piece.states.values)
        if self.num_left:
            return False
        if self.rows.states is not None:
            whole = self._states[0] if len(self._states) == 1 else np.concatenate(self._states, axis=1)
            self.rows.states.values = whole
        return True

    def evaluate(self, pieces: Sequence[SequenceRows]) -> Sequence[F32]:
        return self.decoder.forward_forest(list(pieces))


@dataclass(eq=False)
class WantedStage(Wanted[StageRows]):
    """Rows of a stage of a speculator, few enough to be one piece."""

    rows: StageRows

    @property
    def model(self) -> Model:
        return id(self.rows.speculator), self.rows.index

    @property
    def num_left(self) -> int:
        return self.rows.num_rows

    def next_rows(self, most: int) -> StageRows:
        return self.rows

    def took(self, piece: StageRows) -> bool:
        return True

    def evaluate(self, pieces: Sequence[StageRows]) -> Sequence[StageAnswer]:
        states, logits = StageRows.joined(pieces).evaluate()
        ends = np.cumsum([piece.num_rows for piece in pieces])[:-1]
        return list(zip(np.split(states, ends), np.split(logits, ends), strict=True))
