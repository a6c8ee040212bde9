"""An inspection as one HTML page that needs nothing else: no network and no scripts, dark mode, phones."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.report.histogram import histogram
from mxconv.report.inspection import Inspection
from mxconv.report.statistics import Statistics
from mxconv.report.template import render
from mxconv.report.text import (
    bits,
    drafts,
    group_name,
    magnitude,
    number,
    outside,
    printable,
    stored_bits,
    stored_draft,
    window,
)

SCALE_WIDTH = 160  # of the dot strips


@dataclass(frozen=True)
class Strip:
    """The three drafts of a row as dots on a common decibel axis; None where there is nothing to show."""

    fitted: float | None
    paper: float | None
    mxfp4: float | None


def write_page(inspection: Inspection, path: Path) -> None:
    """Write the page; an existing file is overwritten."""
    path.write_text(render_page(inspection), encoding="utf-8")


def render_page(inspection: Inspection) -> str:
    """The page's text. Every name from a file is escaped, by the template engine."""
    total = inspection.total
    span = _span((*inspection.groups, *inspection.tensors, total))
    groups = [] if inspection.per == "tensor" else [_row(row, inspection.per, span) for row in inspection.groups]
    return render(
        "page.html.j2",
        inspection=inspection,
        source=printable(inspection.source),
        total=_row(total, "total", span),
        exponents=total.exponents,
        histogram=histogram(total.exponents),
        scale_width=SCALE_WIDTH,
        span=span,
        groups=groups,
        tensors=[_row(row, "tensor", span) for row in inspection.tensors],
        is_package=inspection.kind == "package",
        magnitude=magnitude,
        number=number,
    )


def _row(row: Statistics, per: str, span: tuple[float, float] | None) -> dict[str, Any]:
    """One table row as text; `strip` is its picture."""
    fitted, paper, mxfp4 = drafts(row)
    return {
        "name": group_name(row, per),
        "dtype": row.dtype or "",
        "shape": "" if row.shape is None else " × ".join(str(length) for length in row.shape),
        "weights": f"{row.num_weights:,}",
        "max_abs": magnitude(row.exponents.max_abs if row.exponents else None),
        "window": window(row),
        "outside": outside(row),
        "bits": bits(row),
        "fitted": fitted,
        "paper": paper,
        "mxfp4": mxfp4,
        "stored_bits": stored_bits(row),
        "stored_draft": stored_draft(row),
        "what": "; ".join(part for part in (row.codec, row.reason, row.note) if part),
        "strip": Strip(
            _position(row.bsfp_draft_sqnr_db, span),
            _position(row.bsfp_paper_draft_sqnr_db, span),
            _position(row.mxfp4_sqnr_db, span),
        ),
    }


def _span(rows: tuple[Statistics, ...]) -> tuple[float, float] | None:
    """The decibels from the worst to the best draft of all rows, in whole numbers."""
    values = [
        value
        for row in rows
        for value in (row.bsfp_draft_sqnr_db, row.bsfp_paper_draft_sqnr_db, row.mxfp4_sqnr_db)
        if value is not None
    ]
    return (min(values) // 1, max(values) // 1 + 1) if values else None


def _position(value: float | None, span: tuple[float, float] | None) -> float | None:
    if value is None or span is None:
        return None
    return round(6 + (SCALE_WIDTH - 12) * (value - span[0]) / (span[1] - span[0]), 1)
