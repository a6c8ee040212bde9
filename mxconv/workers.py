"""Who does the work: tasks, and streams beside them, for the threads of this process and for a cluster alike.

A *task* is a function of one piece (mostly a tensor). Any thread of any process may call it: it knows files by their
paths, so it can be sent to another process. A *stream* advances in steps, one after another, beside the tasks. The
SHA-256 of a file is one: it cannot be split, and it takes as long as everything else together, so it begins first.
Every executor does the same to the same slices, so no byte depends on who did it.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from mxconv.progress import Progress

Piece = TypeVar("Piece")
Result = TypeVar("Result")

Advance = Callable[[int], None]
"""Called with the bytes of each slice that is done."""


def uncounted(_: int) -> None:
    """The `Advance` of slices that nobody counts."""


class Stream(ABC):
    """Work in steps, one after another. A pickled copy begins at the beginning, in any process."""

    def is_ready(self) -> bool:
        """Whether a step can be done now; called often."""
        return True

    def is_complete(self) -> bool:
        """Whether everything that the stream reads is there, so that a copy can run to its end."""
        return True

    @abstractmethod
    def advance(self) -> bool:
        """Do a step of some milliseconds; False after the last one. Called by one thread at a time."""

    @abstractmethod
    def report(self) -> Any:
        """The result of a copy at its end, for `accept`."""

    @abstractmethod
    def accept(self, report: Any) -> None:
        """Take what a copy has found, and count as finished."""


class Executor(Protocol):
    """Does tasks side by side, and streams beside them."""

    @property
    def num_workers(self) -> int:
        """How many pieces are done at a time."""
        ...

    def add_stream(self, stream: Stream) -> None:
        """Carry this on, too, from the next `map` to `finish_streams`; streams that came earlier go first."""
        ...

    def map(
        self,
        task: Callable[[Piece, Advance], Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece.

        Args:
            task: what is done. It and the pieces can be pickled; it changes nothing of itself.
            pieces: to what, in the order in which they are begun.
            advance: told about bytes; from any thread of this process.
            done: called with each result as soon as it is there; from any thread of this process.

        Returns:
            The results, in the order of the pieces.

        Raises:
            Exception: the first error stops what has not begun; of several, that of the first piece is raised.
        """
        ...

    def finish_streams(self) -> None:
        """Carry the streams on to their ends. All must be able to get there."""
        ...


class ByteCounter:
    """Adds up bytes from several threads and reports the sum."""

    def __init__(self, stage: str, total: int, progress: Progress) -> None:
        self.stage, self.total, self.progress = stage, total, progress
        self.done = 0
        self._lock = threading.Lock()

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self.done += num_bytes
            self.progress(self.stage, self.done, self.total)


@dataclass
class _Run(Generic[Piece, Result]):
    """State of one call of `Workers.map`, shared by its threads."""

    task: Callable[[Piece, Advance], Result]
    pieces: Sequence[Piece]
    advance: Advance = uncounted
    done: Callable[[Result], None] | None = None
    num_begun: int = 0
    num_finished: int = 0
    results: dict[int, Result] = field(default_factory=dict)  # by the index of the piece
    errors: dict[int, BaseException] = field(default_factory=dict)  # likewise; -1 is a stream's


class Workers:
    """Threads for tasks and streams: an `Executor`. Nothing runs outside of its methods."""

    def __init__(self, num_threads: int) -> None:
        self.num_workers = num_threads
        # one thread at least is left for tensors, so that they are read while the file is in the page cache
        self._max_streams = max(1, num_threads // 2)
        self._streams: list[Stream] = []  # that have not ended
        self._advancing: list[Stream] = []  # of these
        self._needs_streams = False  # whether `map` ends only when all streams have
        self._changed = threading.Condition()

    def add_stream(self, stream: Stream) -> None:
        with self._changed:
            self._streams.append(stream)

    def map(
        self,
        task: Callable[[Piece, Advance], Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece, and advance the streams meanwhile: see `Executor.map`."""
        run = _Run(task, pieces, advance, done)
        threads = [threading.Thread(target=self._serve, args=(run,), daemon=True) for _ in range(self.num_workers - 1)]
        for thread in threads:
            thread.start()
        self._serve(run)
        for thread in threads:
            thread.join()
        if run.errors:
            raise run.errors[min(run.errors)]
        return [run.results[index] for index in range(len(pieces))]

    def finish_streams(self) -> None:
        """Advance the streams to their ends. All must be able to get there."""
        nothing: Sequence[None] = ()
        self._needs_streams = True
        try:
            self.map(lambda _, __: None, nothing)
        finally:
            self._needs_streams = False

    def _serve(self, run: _Run[Any, Any]) -> None:
        """Do tasks and advance streams until nothing is left: what each thread does."""
        job: int | Stream | None = None
        try:
            while (job := self._next(run)) is not None:
                if isinstance(job, int):
                    run.results[job] = run.task(run.pieces[job], run.advance)
                    if run.done is not None:
                        run.done(run.results[job])
                    goes_on = False
                else:
                    goes_on = job.advance()
                with self._changed:
                    if isinstance(job, int):
                        run.num_finished += 1
                    else:
                        self._advancing.remove(job)
                        if not goes_on:
                            self._streams.remove(job)
                    self._changed.notify_all()
        except BaseException as error:  # Ctrl-C, too, while this thread waited
            with self._changed:
                run.errors[job if isinstance(job, int) else -1] = error
                self._changed.notify_all()

    def _next(self, run: _Run[Any, Any]) -> int | Stream | None:
        """The piece or the stream that this thread goes on with; None when there is nothing left."""
        with self._changed:
            while not run.errors:
                is_finished = run.num_finished == len(run.pieces)
                if is_finished and not (self._needs_streams and self._streams):
                    return None
                has_pieces = run.num_begun < len(run.pieces)
                if len(self._advancing) < self._max_streams or not has_pieces:
                    idle = (stream for stream in self._streams if stream not in self._advancing)
                    if ready := next((stream for stream in idle if stream.is_ready()), None):
                        self._advancing.append(ready)
                        return ready
                if has_pieces:
                    run.num_begun += 1
                    return run.num_begun - 1
                assert self._advancing or not is_finished, "a stream waits for nothing"
                self._changed.wait()
        return None
