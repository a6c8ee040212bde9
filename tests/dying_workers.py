"""Tasks and streams that end the process which runs them; other processes import them, too."""

import os
import signal
from collections.abc import Callable
from pathlib import Path


def die_once(flag: Path, _: Callable[[int], None]) -> None:
    """End this process with SIGKILL, the first time that somebody does this piece."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def die(_: Path, __: Callable[[int], None]) -> None:
    """End this process, each time."""
    os.kill(os.getpid(), signal.SIGKILL)


class DiesOnce:
    """A stream of ten bytes whose first copy ends its process in the middle."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag
        self.num_bytes = 0

    def __reduce__(self) -> tuple[object, ...]:
        return DiesOnce, (self._flag,)

    def is_ready(self) -> bool:
        return True

    def is_complete(self) -> bool:
        return True

    def advance(self) -> bool:
        self.num_bytes += 1
        if self.num_bytes == 5:
            die_once(self._flag, lambda _: None)
        return self.num_bytes < 10

    def report(self) -> int:
        return self.num_bytes

    def accept(self, report: int) -> None:
        self.num_bytes = report
