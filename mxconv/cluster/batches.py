"""The pieces of a task, in batches: who has which, and what came of them.

A piece that a late worker has is sent to an idle one, too. Both write the same bytes to the same places; what comes
first counts, and of the other nothing is told.
"""

import math
import pickle
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from mxconv.cluster import job
from mxconv.cluster.crew import Crew
from mxconv.cluster.member import Member
from mxconv.cluster.pace import Pace
from mxconv.cluster.remote import Outcome
from mxconv.workers import Advance, Piece, Result, Task

BATCH_BYTES = 32_000_000  # a tenth of a second: what a call costs does not matter beside it
BATCH_PIECES = 32
PIECE_BYTES = 1_000_000  # what a piece costs of its own, as bytes; all that `Pace` knows of one without length


class Batches(Generic[Piece, Result]):
    """The pieces of one task: those that are left, and what came of the others."""

    def __init__(
        self,
        crew: Crew,
        task: Task[Piece, Result],
        pieces: Sequence[Piece],
        advance: Advance,
        done: Callable[[Result], None] | None,
    ) -> None:
        """See `Executor.map`."""
        self._crew, self._pieces, self._advance, self._done = crew, pieces, advance, done
        self._key, self._task, self._name = uuid.uuid4().bytes, pickle.dumps(task), job.name_of(task)
        self._left = deque(range(len(pieces)))
        self._lost: Counter[int] = Counter()  # how often each was with a worker that is gone
        self._late: Counter[int] = Counter()  # and with one that is late
        self._pace = Pace()
        self._results: dict[int, Result] = {}
        self.errors: dict[int, BaseException] = {}

    @property
    def num_left(self) -> int:
        """Pieces that nobody has; after an error none."""
        return 0 if self.errors else len(self._left)

    @property
    def are_done(self) -> bool:
        """Or there is an error."""
        return bool(self.errors) or len(self._results) == len(self._pieces)

    def results(self) -> list[Result]:
        """In the order of the pieces. Raises the error of the first piece that has one."""
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self._results[index] for index in range(len(self._pieces))]

    def send(self, member: Member) -> None:
        """Send the next pieces: many small ones, and fewer towards the end, so that all workers end together."""
        indexes: list[int] = []
        num_bytes, most = 0, min(BATCH_PIECES, len(self._left) // (4 * max(self._crew.num_ready, 1)))
        while self._left and (not indexes or (len(indexes) < most and num_bytes < BATCH_BYTES)):
            if indexes and self._lost[self._left[0]]:  # alone: it may be what ended the worker
                break
            indexes.append(self._left.popleft())
            num_bytes += getattr(self._pieces[indexes[-1]], "num_bytes", 0)
            if self._lost[indexes[-1]]:
                break
        sent = [pickle.dumps(self._pieces[index]) for index in indexes]
        name = f"{self._name} {job.name_of(self._pieces[indexes[0]])}"
        batch = _Batch(self, indexes, num_bytes + PIECE_BYTES * len(indexes), max(self._late[i] for i in indexes))
        self._crew.send(member, batch, name, "do", self._key, self._task, sent)

    def patience(self, batch: "_Batch") -> float:
        """Of `Job`; nobody waits for what was handed over."""
        return -math.inf if batch.is_handed_over else self._pace.patience(batch.num_bytes, batch.num_late)

    def take(self, batch: "_Batch", outcomes: list[Outcome]) -> None:
        """What came of some pieces; of those behind an error nothing, and of those that somebody else did."""
        self._pace.note(batch.num_bytes, sum(outcome.seconds for outcome in outcomes))
        for index, outcome in zip(batch.indexes, outcomes, strict=False):
            if index in self._results:
                continue
            if outcome.error is not None:
                if not batch.is_handed_over:  # whoever has it now will say the same, or do it
                    self.errors[index] = outcome.error
                return
            if batch.is_handed_over and index in self._left:
                self._left.remove(index)
            self._advance(outcome.num_bytes)
            try:
                if self._done is not None:
                    self._done(outcome.result)
            except Exception as error:
                self.errors[index] = error
                return
            self._results[index] = outcome.result

    def give_back(self, batch: "_Batch", cause: str) -> None:
        """Their worker is gone."""
        indexes = [] if batch.is_handed_over else self._without_result(batch)
        self._left.extendleft(reversed(indexes))
        self._lost.update(indexes)
        if indexes and self._lost[indexes[0]] > job.MAX_RETRIES:
            self.errors[indexes[0]] = job.lost_too_often(cause)

    def hand_over(self, batch: "_Batch") -> bool:
        """Their worker is late."""
        if batch.is_handed_over:
            return False
        batch.is_handed_over = True
        indexes = self._without_result(batch)
        self._left.extend(indexes)
        self._late.update(indexes)
        return bool(indexes)

    def _without_result(self, batch: "_Batch") -> list[int]:
        return [index for index in batch.indexes if index not in self._results]


@dataclass(eq=False)
class _Batch:
    """Pieces that one worker has."""

    batches: Batches[Any, Any]
    indexes: list[int]
    num_bytes: int
    num_late: int  # workers that were late with one of them
    is_handed_over: bool = False

    @property
    def patience(self) -> float:
        return self.batches.patience(self)

    def take(self, outcome: list[Outcome]) -> None:
        self.batches.take(self, outcome)

    def give_back(self, cause: str) -> None:
        self.batches.give_back(self, cause)

    def hand_over(self) -> bool:
        return self.batches.hand_over(self)
