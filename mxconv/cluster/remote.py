"""What runs in a worker of the cluster: one piece of a task, or a whole stream."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mxconv import __version__
from mxconv.errors import MxconvError

_tasks: dict[bytes, Any] = {}  # the last one that this process did; it keeps files open


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a result, or the error that a thread would have raised."""

    result: Any = None
    num_bytes: int = 0  # that were reported on the way
    error: BaseException | None = None


def do_piece(version: str, key: bytes, stored: list[Any], piece: Any) -> Outcome:
    """One piece of a task.

    Args:
        version: of mxconv where the command runs.
        key: names the task.
        stored: the reference under which the cluster keeps it.
        piece: to which it is done.
    """
    num_bytes = 0

    def advance(done: int) -> None:
        nonlocal num_bytes
        num_bytes += done

    def work() -> Any:
        _check_version(version)
        if key not in _tasks:
            import ray

            _tasks.clear()
            _tasks[key] = pickle.loads(ray.get(stored[0]))
        return _tasks[key](pickle.loads(piece), advance)

    outcome = _guarded(work)
    return Outcome(outcome.result, num_bytes, outcome.error)


def do_whole(version: str, whole: bytes) -> Outcome:
    """A stream, from its beginning to its end."""

    def work() -> Any:
        _check_version(version)
        return pickle.loads(whole)()

    return _guarded(work)


def _check_version(version: str) -> None:
    if version != __version__:
        raise MxconvError(
            f"a worker runs mxconv {__version__}, this command {version}; the same version is required on every node. "
            "Install it there."
        )


def _guarded(work: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(work())
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # some exceptions cannot be sent
            return Outcome(error=MxconvError(f"{type(error).__name__} in a worker: {error}"))
        return Outcome(error=error)
