"""A published number, and ours beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

Kind = Literal["derived", "fitted", "copied"]
COLUMNS = ("number", "published", "ours", "error", "kind")


@dataclass(frozen=True)
class Row:
    """One number.

    Args:
        what: it is.
        published: as printed; None where the paper has a picture or nothing.
        ours: what the models make of other numbers; None where it is copied.
        digits: behind the point.
        kind: derived (from other numbers), fitted (a constant was chosen to meet it: it tests nothing) or copied.
    """

    what: str
    published: float | None
    ours: float | None
    digits: int = 2
    kind: Kind = "derived"

    @property
    def error(self) -> float | None:
        """Ours over published, less one; None where either is missing."""
        return None if self.ours is None or self.published is None else self.ours / self.published - 1

    def cells(self) -> list[str]:
        figures = [f"{value:,.{self.digits}f}" if value is not None else "-" for value in (self.published, self.ours)]
        error = "-" if self.error is None else f"{self.error:+.1%}"
        return [self.what, *figures, error, self.kind]


@dataclass(frozen=True)
class Section:
    """Rows of one table of a paper; `note` says in words what they show."""

    title: str
    rows: Sequence[Row]
    note: str = ""

    @property
    def errors(self) -> list[float]:
        """Magnitudes of the errors of derived rows."""
        return [abs(row.error) for row in self.rows if row.error is not None and row.kind == "derived"]

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        if len(self.errors) > 1:
            found = (
                f"mean error {mean(self.errors):.1%}, median {median(self.errors):.1%}, worst {max(self.errors):.1%}"
            )
            lines += [f"{len(self.errors)} derived rows: {found}.", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        return "\n".join(lines) + "\n"
