"""Output of commands: tables to stdout, progress and warnings to stderr; with --json stdout ends with an object."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.progress import Progress
from mxconv.report.tables import Columns, TextTable, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.gpu_kernel_speed import GpuMachine
    from mxconv.bench.machine import Machine

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe


class Output:
    """Prints lines, tables and JSON: to stdout, or to stderr while stdout belongs to --json."""

    def __init__(self, json_output: bool) -> None:
        self._json_output = json_output

    @cached_property
    def console(self) -> "Console":
        """The console on which rich prints."""
        from rich.console import Console

        out = Console(stderr=self._json_output, soft_wrap=True)
        return out if out.is_terminal else Console(stderr=self._json_output, soft_wrap=True, width=PIPE_WIDTH)

    def line(self, text: str, style: str | None = None, end: str = "\n") -> None:
        """Print a text as it is."""
        self.console.print(text, style=style, end=end, markup=False, highlight=False)

    def table(self, columns: Columns, rows: Iterable[Any]) -> None:
        """Print a row of cells for each of `rows`."""
        print_table(TextTable.of("", columns, rows), self.console)

    def json(self, members: dict[str, Any]) -> None:
        """Print an object as the last line of stdout, with --json."""
        if self._json_output:
            sys.stdout.write(json.dumps(members) + "\n")
            sys.stdout.flush()

    def write_text(self, path: Path | None, text: str) -> None:
        """Write a text in UTF-8, as `write` does."""

        def write(partial: Path) -> None:
            partial.write_text(text, encoding="utf-8")

        self.write(path, write)

    def write(self, path: Path | None, write: Callable[[Path], None]) -> None:
        """Let `write` fill a file, beside its place and renamed when complete, and say so; None writes nothing."""
        from mxconv.system.replacement import write_output

        if path is not None:
            write_output(path, write)
            self.line(f"wrote {path}")


def print_machine(out: Output, machine: "Machine | GpuMachine", versions: str) -> None:
    """Print which machine measured, with the versions of what was measured."""
    commit = f", mxconv at {machine.commit[:12]}{machine.commit[40:]}" if machine.commit else ""
    out.line(f"{machine.described}, {versions}{commit}")


def check_outputs(force: bool, pictures: Sequence[Path | None], others: Sequence[Path | None] = ()) -> None:
    """See before the work that files can be written.

    Raises:
        MxconvError: one exists and `force` is not set, or a picture is none of .png and .svg.
    """
    from mxconv.report.charts import check_suffix
    from mxconv.system.replacement import check_output

    for picture in filter(None, pictures):
        check_suffix(picture)
    for path in filter(None, (*pictures, *others)):
        check_output(path, force)


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
