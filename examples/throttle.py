"""A disk of so many bytes a second for each process of a cluster: what examples/throttled_nodes.py sends to workers."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from mxconv.workers import Advance, Executor, Stream, Task, uncounted

AHEAD_SECONDS = 0.1  # that the disk reads ahead while the processor works


class Disk:
    """Reads that wait for their turn; one a process, which is a node of one processor."""

    def __init__(self) -> None:
        self._end = 0.0  # when it has read what it was asked for

    def read(self, num_bytes: int, bytes_per_second: float) -> None:
        now = time.monotonic()
        self._end = max(self._end, now - AHEAD_SECONDS) + num_bytes / bytes_per_second
        time.sleep(max(0.0, self._end - now))


DISK = Disk()


class ThrottledTask:
    """A task whose bytes come from the disk; it tells of them slice by slice."""

    def __init__(self, task: Task[Any, Any], rate: float) -> None:
        self.name = getattr(task, "name", type(task).__name__)
        self._task, self._rate = task, rate

    def __call__(self, piece: Any, advance: Advance) -> Any:
        def told(num_bytes: int) -> None:
            DISK.read(num_bytes, self._rate)
            advance(num_bytes)

        return self._task(piece, told)


class ThrottledStream:
    """A file's hash that comes from the disk."""

    def __init__(self, stream: Stream, rate: float) -> None:
        self._stream, self._rate = stream, rate

    @property
    def name(self) -> str:
        return str(getattr(self._stream, "name", "stream"))

    @property
    def ready(self) -> int:
        return self._stream.ready

    @ready.setter
    def ready(self, num_bytes: int) -> None:
        self._stream.ready = num_bytes

    def is_ready(self) -> bool:
        return self._stream.is_ready()

    def advance(self) -> bool:
        before = self._num_bytes()
        goes_on = self._stream.advance()
        DISK.read(self._num_bytes() - before, self._rate)
        return goes_on

    def report(self) -> Any:
        return self._stream.report()

    def accept(self, report: Any) -> None:
        self._stream.accept(report)

    def _num_bytes(self) -> int:
        """Hashed so far."""
        found = getattr(self._stream, "num_bytes", None)
        return int(self._stream.report()[0] if found is None else found)


class ThrottledExecutor:
    """An executor whose workers read from such disks."""

    def __init__(self, executor: Executor, rate: float) -> None:
        self._executor, self._rate = executor, rate

    @property
    def num_workers(self) -> int:
        return self._executor.num_workers

    def add_stream(self, stream: Stream) -> None:
        self._executor.add_stream(ThrottledStream(stream, self._rate))

    def map(
        self,
        task: Task[Any, Any],
        pieces: Sequence[Any],
        advance: Advance = uncounted,
        done: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        return self._executor.map(ThrottledTask(task, self._rate), pieces, advance, done)

    def finish_streams(self) -> None:
        self._executor.finish_streams()
