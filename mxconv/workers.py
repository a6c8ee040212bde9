"""Who does the work: tasks, and streams beside them, for the threads of this process and for a cluster alike.

A *task* is a function of one piece (mostly a tensor). Any thread of any process may call it: it knows files by their
paths, so it can be sent to another process. A *stream* advances in steps, one after another, beside the tasks. The
SHA-256 of a file is one: it cannot be split, and it takes as long as everything else together, so it begins first.
Every executor does the same to the same slices, so no byte depends on who did it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from mxconv.progress import Progress

Piece = TypeVar("Piece")
Result = TypeVar("Result")
Piece_contra = TypeVar("Piece_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)

Advance = Callable[[int], None]
"""Called with the bytes of each slice that is done."""


def uncounted(_: int) -> None:
    """Of slices that nobody counts."""


class Task(Protocol[Piece_contra, Result_co]):
    """What is done to each piece. It and the pieces can be pickled; it changes nothing of itself."""

    def __call__(self, piece: Piece_contra, advance: Advance, /) -> Result_co:
        """Do it."""
        ...


class Stream(Protocol):
    """Work in steps, one after another. A pickled copy begins at the beginning, in any process."""

    def is_ready(self) -> bool:
        """Whether a step can be done now; called often."""
        ...

    def is_complete(self) -> bool:
        """Whether everything that the stream reads is there, so that a copy can run to its end."""
        ...

    def advance(self) -> bool:
        """Do a step of some milliseconds; False after the last one. Called by one thread at a time."""
        ...

    def report(self) -> Any:
        """What a copy has found at its end, for `accept`."""
        ...

    def accept(self, report: Any) -> None:
        """Take what a copy has found, and count as finished."""
        ...


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
        task: Task[Piece, Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece.

        Args:
            task: what is done.
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


STREAM = -1  # the index of what is no task


class Workers:
    """Threads for tasks and streams: an `Executor`. Nothing runs outside of its methods."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        # one thread at least is left for tensors, so that they are read while the file is in the page cache
        self._max_streams = max(1, num_threads // 2)
        self._idle: list[Stream] = []
        self._num_advancing = 0
        self._changed = threading.Condition()

    @property
    def num_workers(self) -> int:
        return self.num_threads

    def add_stream(self, stream: Stream) -> None:
        """Carry this on, too, from the next `run` to `finish_streams`; streams that came earlier go first."""
        with self._changed:
            self._idle.append(stream)

    def map(
        self,
        task: Task[Piece, Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece, see `Executor.map`."""

        def work(index: int) -> Result:
            result = task(pieces[index], advance)
            if done is not None:
                done(result)
            return result

        return self.run(work, len(pieces))

    def run(self, work: Callable[[int], Result], count: int) -> list[Result]:
        """Call work(0), ..., work(count - 1), and advance the streams until these calls have returned.

        The first error stops what has not begun; of several, the one of the lowest index is raised.
        """
        return _Run(self, work, count, needs_streams=False).results()

    def finish_streams(self) -> None:
        """Advance the streams to their ends. All must be able to get there."""
        _Run(self, lambda _: None, 0, needs_streams=True).results()


class _Run(Generic[Result]):
    """One call of `Workers.run`."""

    def __init__(self, workers: Workers, work: Callable[[int], Result], count: int, *, needs_streams: bool) -> None:
        self.workers, self.work, self.count, self.needs_streams = workers, work, count, needs_streams
        self.next_task = self.num_finished = 0
        self.done: dict[int, Result] = {}
        self.errors: dict[int, BaseException] = {}

    def results(self) -> list[Result]:
        num_threads = self.workers.num_threads
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(num_threads - 1)]
        for thread in threads:
            thread.start()
        self._serve()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.done[index] for index in range(self.count)]

    def _serve(self) -> None:
        try:
            while (piece := self._next()) is not None:
                piece()
        except BaseException as error:  # Ctrl-C, while this thread waited
            with self.workers._changed:
                self.errors[STREAM] = error
                self.workers._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """What this thread does next; None when there is nothing left."""
        workers = self.workers
        with workers._changed:
            while not self.errors:
                streams_left = workers._idle or workers._num_advancing
                if self.num_finished == self.count and not (self.needs_streams and streams_left):
                    return None
                if workers._num_advancing < workers._max_streams and (piece := self._piece()):
                    return piece
                if self.next_task < self.count:
                    index = self.next_task
                    self.next_task += 1
                    return lambda: self._call(index)
                if piece := self._piece():
                    return piece
                assert workers._num_advancing or self.num_finished < self.count, "a stream waits for nothing"
                workers._changed.wait()
            return None

    def _piece(self) -> Callable[[], None] | None:
        """Take a stream that has something to do."""
        idle = self.workers._idle
        ready = next((stream for stream in idle if stream.is_ready()), None)
        if ready is None:
            return None
        self.workers._num_advancing += 1
        place = idle.index(ready)
        del idle[place]
        return lambda: self._advance(ready, place)

    def _advance(self, stream: Stream, place: int) -> None:
        goes_on = False
        try:
            goes_on = stream.advance()
        except BaseException as error:
            self.errors[STREAM] = error
        with self.workers._changed:
            self.workers._num_advancing -= 1
            if goes_on:
                self.workers._idle.insert(place, stream)
            self.workers._changed.notify_all()

    def _call(self, index: int) -> None:
        try:
            self.done[index] = self.work(index)
        except BaseException as error:
            self.errors[index] = error
        with self.workers._changed:
            self.num_finished += 1
            self.workers._changed.notify_all()
