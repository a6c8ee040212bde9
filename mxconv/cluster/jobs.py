"""What a cluster's workers are sent: batches of pieces of one task, and streams that stay with one worker."""

import pickle
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from mxconv.cluster.crew import Crew, Member
from mxconv.cluster.remote import Outcome
from mxconv.conversion.executor import Advance, Piece, Result, Stream, Task
from mxconv.errors import MxconvError

MAX_RETRIES = 8  # of what was with a worker that is gone
BATCH_BYTES = 32_000_000  # a tenth of a second: what a call costs does not matter beside it
BATCH_PIECES = 32


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
        self._key, self._task, self._name = uuid.uuid4().bytes, pickle.dumps(task), _name(task)
        self._left = deque(range(len(pieces)))
        self._lost: Counter[int] = Counter()  # how often each was with a worker that is gone
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
        name = f"{self._name} {_name(self._pieces[indexes[0]])}"
        self._crew.send(member, _Batch(self, indexes), name, "do", self._key, self._task, sent)

    def take(self, indexes: list[int], outcomes: list[Outcome]) -> None:
        """What came of some pieces; of those behind an error nothing."""
        for index, outcome in zip(indexes, outcomes, strict=False):
            if outcome.error is not None:
                self.errors[index] = outcome.error
                return
            self._advance(outcome.num_bytes)
            try:
                if self._done is not None:
                    self._done(outcome.result)
            except Exception as error:
                self.errors[index] = error
                return
            self._results[index] = outcome.result

    def give_back(self, indexes: list[int], cause: str) -> None:
        """Their worker is gone."""
        self._left.extendleft(reversed(indexes))
        self._lost.update(indexes)
        if self._lost[indexes[0]] > MAX_RETRIES:
            self.errors[indexes[0]] = _lost_too_often(cause)


@dataclass
class _Batch:
    """Pieces that one worker has."""

    batches: Batches[Any, Any]
    indexes: list[int]

    def take(self, outcome: list[Outcome]) -> None:
        self.batches.take(self.indexes, outcome)

    def give_back(self, cause: str) -> None:
        self.batches.give_back(self.indexes, cause)


class SentStream:
    """A stream, and the worker that has its state. When that is gone, another one begins at the beginning."""

    def __init__(self, crew: Crew, stream: Stream) -> None:
        self._crew, self._stream = crew, stream
        self._key = uuid.uuid4().bytes
        self._num_lost = 0
        self._member: Member | None = None
        self.is_running = self.is_finished = False
        self.error: BaseException | None = None

    def is_ready(self) -> bool:
        """Whether somebody can carry it on now."""
        return not self.is_finished and not self.is_running and self._stream.is_ready()

    def is_for(self, member: Member) -> bool:
        """Whether this worker can: nobody else has what was done so far."""
        return self._member is None or self._member.is_gone or self._member is member

    def send(self, member: Member) -> None:
        """Have a worker carry it on."""
        sent = pickle.dumps(self._stream) if self._member is not member else None
        self._member, self.is_running, ready = member, True, self._stream.ready
        self._crew.send(member, self, f"hash {_name(self._stream)}", "carry_on", self._key, sent, ready)

    def take(self, outcome: Outcome) -> None:
        """Take what was found so far."""
        self.is_running = False
        self.error = outcome.error
        if self.error is None:
            report, self.is_finished = outcome.result
            self._stream.accept(report)

    def give_back(self, cause: str) -> None:
        """Its worker is gone."""
        self._member, self.is_running = None, False
        self._num_lost += 1
        if self._num_lost > MAX_RETRIES:
            self.error = _lost_too_often(cause)


def _lost_too_often(cause: str) -> MxconvError:
    return MxconvError(
        f"--workers ray: a piece of work was lost {MAX_RETRIES + 1} times ({cause}); workers that stay alive are "
        "required. Look at the memory of the nodes (--memory), and run the same command again: it goes on where it "
        "stopped."
    )


def _name(of: Any) -> str:
    """What Ray's dashboard shows."""
    name = getattr(of, "name", None) or getattr(of, "__name__", None)
    return name if isinstance(name, str) else type(of).__name__
