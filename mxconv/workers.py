"""Do a task to many pieces side by side, by the threads of this process or by a cluster.

A *task* is a function of one piece (mostly a tensor). Any thread of any process may call it: it knows files by their
paths, so it can be sent to another process. Every executor does the same to the same slices, so no byte depends on
who did it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Protocol, TypeVar

from mxconv.progress import Progress

Piece = TypeVar("Piece")
Result = TypeVar("Result")

Advance = Callable[[int], None]
"""Called with the bytes of each slice that is done."""


INTERRUPTIBLE_SECONDS = 0.5  # of a wait: on Windows an interrupt does not end it


def uncounted(_: int) -> None:
    """The `Advance` of slices that nobody counts."""


class Executor(Protocol):
    """Does tasks side by side."""

    @property
    def num_workers(self) -> int:
        """How many pieces are done at a time."""
        ...

    @property
    def beside(self) -> "Executor":
        """Who works at the same time as this one."""
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


class Workers:
    """Threads: an `Executor`. Nothing runs outside of its methods."""

    def __init__(self, num_threads: int, slots: threading.Semaphore | None = None) -> None:
        """`slots` are shared by those who work at the same time, each piece in one of them."""
        self.num_workers = num_threads
        self._slots = slots or threading.Semaphore(num_threads)

    @property
    def beside(self) -> "Workers":
        """Half of the threads, for as long as they have work."""
        return Workers(max(1, self.num_workers // 2), self._slots)

    def map(
        self,
        task: Callable[[Piece, Advance], Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece: see `Executor.map`."""

        def do(piece: Piece) -> Result:
            with self._slots:
                result = task(piece, advance)
                if done is not None:
                    done(result)
            return result

        pool = ThreadPoolExecutor(self.num_workers)
        try:
            futures = [pool.submit(do, piece) for piece in pieces]
            done_now, left = set[Future[Result]](), set(futures)
            while left and not any(future.exception() for future in done_now):
                done_now, left = wait(left, INTERRUPTIBLE_SECONDS, FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
        return [future.result() for future in futures]


@contextmanager
def beside(
    executor: Executor, task: Callable[[Piece, Advance], Result], pieces: Sequence[Piece], advance: Advance
) -> Iterator["Future[list[Result]]"]:
    """Do a task to every piece while the block runs, whose end stops what is left; arguments are those of `map`."""
    is_over = False

    def advance_or_stop(num_bytes: int) -> None:
        if is_over:
            raise CancelledError
        advance(num_bytes)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(executor.beside.map, task, pieces, advance_or_stop)
        try:
            yield future
        finally:
            is_over = True


def result_of(future: "Future[list[Result]]") -> list[Result]:
    """The result of a future, waited for so that an interrupt is heard."""
    while wait([future], INTERRUPTIBLE_SECONDS).not_done:
        pass
    return future.result()


def unless_failed(future: "Future[Result]", advance: Advance) -> Advance:
    """An `Advance` that raises the error of a future: work beside it that is in vain stops."""

    def advance_or_raise(num_bytes: int) -> None:
        if future.done():
            future.result()
        advance(num_bytes)

    return advance_or_raise
