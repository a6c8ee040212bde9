"""Where results go: tables to stdout, progress and warnings to stderr; with --json the object is stdout's last line."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mxconv.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe


def console(json_output: bool) -> "Console":
    """Where tables are printed: stdout, or stderr while stdout belongs to --json."""
    from rich.console import Console

    out = Console(stderr=json_output, soft_wrap=True)
    return out if out.is_terminal else Console(stderr=json_output, soft_wrap=True, width=PIPE_WIDTH)


def print_json(members: dict[str, Any]) -> None:
    """One JSON object as the last line of stdout."""
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()


@contextmanager
def progress_bars(unit: str = "bytes", one_bar: bool = False) -> Iterator[Progress]:
    """A bar a stage, or one whose stage changes, on stderr, where somebody is looking; silent elsewhere.

    The terminal is taken over with the first report, so that the Hub client may draw its own bars before that.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    terminal = Console(stderr=True)
    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    bars = Bars(*columns, console=terminal, disable=not terminal.is_terminal, transient=True)
    tasks: dict[str, Any] = {}

    def show(stage: str, done: int, total: int) -> None:
        key = "" if one_bar else stage
        if key not in tasks:
            bars.start()
            tasks[key] = bars.add_task(stage, total=total)
        bars.update(tasks[key], description=stage, completed=done)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


def format_bytes(num_bytes: float) -> str:
    """Bytes as people read them: 1 GB is 10^9 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
