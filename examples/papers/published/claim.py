"""A published number, and ours beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean
from typing import Literal

Kind = Literal["derived", "assumed"]
COLUMNS = ("number", "published", "ours", "error")


@dataclass(frozen=True)
class Claim:
    """One number; docs/research/published.md says what the kinds are."""

    what: str  # its name
    published: float  # as printed
    ours: float  # as the models compute it from others
    digits: int = 2  # shown after the decimal point
    kind: Kind = "derived"  # how ours was found
    group: str = ""  # what it is a cell of; the page has a row for all cells, with the range and the errors

    @property
    def error(self) -> float:
        """Ours over published, less one."""
        return self.ours / self.published - 1


def table(title: str, claims: Iterable[Claim], every_cell: bool = False) -> str:
    """The figures of a paper in Markdown, after a title; a row for each group unless every cell is wanted."""
    groups = groupby(enumerate(claims), lambda item: item[0] if every_cell else item[1].group or item[0])
    lines = [f"## {title}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [f"| {' | '.join(_cells([claim for _, claim in rows]))} |" for _, rows in groups]
    return "\n".join(lines) + "\n"


def _cells(rows: Sequence[Claim]) -> list[str]:
    first, errors = rows[0], [row.error for row in rows]
    figures = [_range([row.published for row in rows], first.digits), _range([row.ours for row in rows], first.digits)]
    mark = " (assumed)" if first.kind == "assumed" else ""
    if len(rows) == 1:
        return [first.what + mark, *figures, f"{errors[0]:+.1%}"]
    sizes = [abs(error) for error in errors]
    return [f"{first.group}, {len(rows)}{mark}", *figures, f"mean {mean(sizes):.1%}, worst {max(sizes):.1%}"]


def _range(values: Sequence[float], digits: int) -> str:
    least, most = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return least if least == most else f"{least} to {most}"
