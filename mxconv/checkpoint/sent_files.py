"""Open files that are sent to another process: as their path, and how they looked when the work began.

A process opens each of them once. A file that looks another way there is refused: what one process planned would not
be what another one reads.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from mxconv.errors import CheckpointError

MAX_OPEN = 64  # of files that nobody uses at the moment


class Look(NamedTuple):
    """By which a file is known again."""

    num_bytes: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path) -> "Look":
        """Raises CheckpointError where there is no file."""
        try:
            status = path.stat()
        except OSError as error:
            raise CheckpointError(
                f"{path}: {error.strerror}; workers need every file under the path at which the command found it. "
                "Put it into a folder that all nodes share."
            ) from error
        return cls(status.st_size, status.st_mtime_ns)


class Closable(Protocol):
    """A file that knows whether it was closed."""

    @property
    def is_closed(self) -> bool: ...


Key = tuple[type, Path, Look]
_open: WeakValueDictionary[Key, Any] = WeakValueDictionary()
_recent: OrderedDict[Key, Any] = OrderedDict()


def remember(file: Closable, path: Path) -> Look:
    """Note an open file: whoever is sent it in this same process gets it, not another one."""
    look = Look.at(path)
    _open[type(file), path, look] = file
    return look


def check_look(path: Path, look: Look) -> None:
    """Refuse a file that was changed.

    Raises:
        CheckpointError: it looks another way than it did.
    """
    now = Look.at(path)
    if now != look:
        change = f"from {look.num_bytes:,} to {now.num_bytes:,} bytes" if now.num_bytes != look.num_bytes else "in time"
        raise CheckpointError(
            f"{path}: changed {change} while it was read; a checkpoint must stay as it is. "
            "Wait until it is complete and run again."
        )


def reopen(kind: Callable[[Path], Any], path: Path, look: Look) -> Any:
    """The file that was sent.

    Raises:
        CheckpointError: it is not here, or was changed.
    """
    assert isinstance(kind, type)
    check_look(path, look)
    key = (kind, path, look)
    file = _open.get(key)
    if file is None or file.is_closed:
        file = kind(path)
    _recent[key] = file
    _recent.move_to_end(key)
    if len(_recent) > MAX_OPEN:
        _recent.popitem(last=False)
    return file
