"""What runs on the cluster: an actor for each processor, which does pieces of tasks and carries streams on."""

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mxconv import __version__
from mxconv.errors import MxconvError
from mxconv.workers import Stream

STREAM_SECONDS = 0.5  # after which a worker asks what else there is


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a result, or the error that a thread would have raised."""

    result: Any = None
    num_bytes: int = 0  # that were reported on the way
    error: BaseException | None = None
    seconds: float = 0.0  # that it took


class Worker:
    """A process of the cluster. It keeps the last task, which keeps files open, and the streams that it began."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, Any] = {}
        self._streams: dict[bytes, Stream] = {}

    def start(self, version: str) -> Outcome:
        """Import what takes long, while the command opens its files.

        Args:
            version: of mxconv where the command runs.
        """

        def work() -> None:
            if version != __version__:
                raise MxconvError(
                    f"a worker runs mxconv {__version__}, this command {version}; the same version is required on "
                    "every node. Install it there."
                )
            import mxconv.conversion.encode
            import mxconv.kernels.engine  # noqa: F401

        return _guarded(work)

    def do(self, key: bytes, task: bytes, pieces: list[bytes]) -> list[Outcome]:
        """Do a task to some pieces, up to the first error.

        Args:
            key: names the task.
            task: pickled.
            pieces: pickled, each.
        """
        outcomes: list[Outcome] = []
        for piece in pieces:
            outcomes.append(self._do_one(key, task, piece))
            if outcomes[-1].error is not None:
                break
        return outcomes

    def _do_one(self, key: bytes, task: bytes, piece: bytes) -> Outcome:
        num_bytes = 0

        def advance(done: int) -> None:
            nonlocal num_bytes
            num_bytes += done

        def work() -> Any:
            if key not in self._tasks:
                self._tasks.clear()
                self._tasks[key] = pickle.loads(task)
            return self._tasks[key](pickle.loads(piece), advance)

        outcome = _guarded(work)
        return replace(outcome, num_bytes=num_bytes)

    def carry_on(self, key: bytes, stream: bytes | None, ready: int) -> Outcome:
        """Do what is ready of a stream, for half a second.

        Args:
            key: names the stream.
            stream: pickled, the first time.
            ready: what the command's own stream has in `ready`.

        Returns:
            A report, and whether it was the last one.
        """

        def work() -> tuple[Any, bool]:
            if stream is not None:
                self._streams[key] = pickle.loads(stream)
            ours, goes_on, end = self._streams[key], True, time.monotonic() + STREAM_SECONDS
            ours.ready = ready
            while goes_on and ours.is_ready() and time.monotonic() < end:
                goes_on = ours.advance()
            if not goes_on:
                del self._streams[key]
            return ours.report(), not goes_on

        return _guarded(work)


def _guarded(work: Callable[[], Any]) -> Outcome:
    begin, result, found = time.monotonic(), None, None
    try:
        result = work()
    except Exception as error:
        found = _sendable(error)
    return Outcome(result, error=found, seconds=time.monotonic() - begin)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # some exceptions cannot be sent
        return MxconvError(f"{type(error).__name__} in a worker: {error}")
    return error
