"""Where work is done: one interface, for the threads of this process (`work.py`) and for a cluster (`mxconv.cluster`).

Work comes in two shapes. A *task* is a function of one piece (a tensor, mostly) that is called in any thread of any
process; it knows files by their paths, so it can be sent there. A *stream* is carried on in pieces, one after another,
beside the tasks: the hash of a file. What is sent does the same to the same slices as what stays, so no byte depends
on who did it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

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
    """Work in pieces, one after another. A pickled copy begins at the beginning, in any process."""

    ready: int
    """Bytes, from the beginning, that can be done by now. Of a copy it is set by whoever has the original."""

    def is_ready(self) -> bool:
        """Whether a piece can be done now; called often."""
        ...

    def advance(self) -> bool:
        """Do a piece of some milliseconds; False after the last one. Called by one thread at a time."""
        ...

    def report(self) -> Any:
        """What a copy has done since it last reported, for `accept`."""
        ...

    def accept(self, report: Any) -> None:
        """Take what a copy reports. Where that was lost another one begins again, and reports the same once more."""
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
