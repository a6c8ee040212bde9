"""A published number, and ours beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal

Kind = Literal["derived", "assumed", "fitted", "read back", "copied"]
COLUMNS = ("number", "published", "ours", "error", "kind")


@dataclass(frozen=True)
class Claim:
    """One number; docs/published.md says what the kinds are.

    Args:
        what: the number's name.
        published: the number as printed; None where the paper has a picture or nothing.
        ours: the number that the models compute from others; None where it is copied.
        digits: shown after the decimal point.
        kind: how ours was found.
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
        return [self.what, *figures, "-" if self.error is None else f"{self.error:+.1%}", self.kind]


@dataclass(frozen=True)
class Section:
    """The figures of one table of a paper."""

    title: str
    rows: Sequence[Claim]

    def errors(self, kind: Kind = "derived") -> list[float]:
        """Magnitudes of the errors of the figures of one kind."""
        return [abs(row.error) for row in self.rows if row.error is not None and row.kind == kind]

    def markdown(self) -> str:
        """The table after its title and the errors of the kinds that test something."""
        lines = [f"## {self.title}", ""]
        kinds: tuple[Kind, ...] = ("derived", "assumed")
        for kind in kinds:
            errors = self.errors(kind)
            if len(errors) > 1:
                found = f"mean error {mean(errors):.1%}, median {median(errors):.1%}, worst {max(errors):.1%}"
                lines += [f"{len(errors)} {kind} rows: {found}.", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(row.cells())} |" for row in self.rows]
        return "\n".join(lines) + "\n"
