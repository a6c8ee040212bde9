"""Tables of text that the terminal and the pages show alike, and figures and names as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

NOTHING = "-"


class Column(NamedTuple):
    """A column of a table: the member of a row that it shows, its format, and a factor for another unit."""

    key: str
    form: str = ""
    factor: float = 1.0


@dataclass
class TextTable:
    """A table whose first column is a name and whose other columns are figures.

    Args:
        lines: below the table.
        notes: below those, in smaller print.
    """

    title: str
    columns: Sequence[str] = ()
    rows: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, title: str, columns: Mapping[str, Column], rows: Iterable[Mapping[str, Any]]) -> "TextTable":
        """Make a table of rows of plain data; `columns` are by heading."""
        return cls(title, list(columns), [[_cell(row[c.key], c) for c in columns.values()] for row in rows])


def print_table(found: TextTable, console: Console) -> None:
    """Print a table with its lines and notes."""
    if found.columns:
        table = Table(title=found.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
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


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return ", ".join(_cell(each, column) for each in value) or NOTHING
    return format(value * column.factor if column.factor != 1.0 else value, column.form)
