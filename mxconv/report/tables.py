"""Tables of text that the terminal and the pages show alike, and figures and names as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "-"
Columns = Mapping[str, tuple[Any, ...]]
"""By heading: the attribute or key of a row, or a function of the row; then a format; then a factor for its unit."""


@dataclass
class TextTable:
    """A table whose first column is a name and whose other columns are figures.

    Args:
        lines: below the table.
        notes: below those, in smaller print.
    """

    title: str = ""
    columns: Sequence[str] = ()
    rows: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, title: str, columns: Columns, rows: Iterable[Any]) -> "TextTable":
        """Make a table with a row of cells for each of `rows`."""
        cells = [[_cell(_member(row, key), *form) for key, *form in columns.values()] for row in rows]
        return cls(title, list(columns), cells)


def print_table(found: TextTable, console: "Console") -> None:
    """Print a table with its lines and notes."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if found.columns:
        title = found.title or None
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(found.columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in found.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    else:
        console.print(Text(found.title, style="bold"), soft_wrap=True)
    for line in found.lines:
        console.print(Text(line), soft_wrap=True)
    for note in found.notes:
        console.print(Text(note, style="dim"))


def printable(name: str) -> str:
    """A name from a file with its control characters escaped, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def number(value: float | None, digits: int) -> str:
    """The value with so many decimals; "-" for None."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(fraction: float) -> str:
    """The fraction in percent: never "0%" for more than nothing, nor "100%" for less than all."""
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    if fraction < 0.0001:
        return "< 0.01%"
    return f"{min(fraction, 0.9999):.2%}"


def format_bytes(num_bytes: float) -> str:
    """Bytes as people read them: 1 GB is 10^9 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def _member(row: Any, key: Any) -> Any:
    if callable(key):
        return key(row)
    return row[key] if isinstance(row, Mapping) else getattr(row, key)


def _cell(value: Any, form: str = "", factor: float = 1) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(each, form, factor) for each in value) or NOTHING
    return format_bytes(value) if form == "bytes" else format(value * factor if factor != 1 else value, form)
