"""Tasks that end or stop the process which does them; other processes import them, too."""

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


def stop_once(flag: Path, advance: Callable[[int], None]) -> str:
    """Stop this process, the first time that somebody does this piece, and finish it when it goes on."""
    _stop_once(flag)
    advance(7)
    return flag.name


class StopsOnce:
    """A stream of ten bytes that stops the process which begins it first."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag
        self.ready, self.num_bytes = 10, 0

    def __reduce__(self) -> tuple[object, ...]:
        return StopsOnce, (self._flag,)

    def is_ready(self) -> bool:
        return True

    def advance(self) -> bool:
        _stop_once(self._flag)
        self.num_bytes += 1
        return self.num_bytes < self.ready

    def report(self) -> int:
        return self.num_bytes

    def accept(self, report: int) -> None:
        self.num_bytes = report


def _stop_once(flag: Path) -> None:
    try:
        with flag.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)
