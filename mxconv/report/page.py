"""An inspection as one HTML page that needs nothing else: no network and no scripts, dark mode, phones."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.report.histogram import histogram
from mxconv.report.inspection import Inspection
from mxconv.report.statistics import Statistics
from mxconv.report.template import render
from mxconv.report.text import (
    NOTHING,
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

SCALE_WIDTH = 120  # of the dot strips
BSFP_BITS, BSFP_DB, PAPER_DB, MXFP4_DB = "BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB"
STORED_BITS, STORED_DB = "stored bits", "stored draft dB"
REPEATED = {STORED_BITS: (BSFP_BITS,), STORED_DB: (BSFP_DB, PAPER_DB, MXFP4_DB)}  # what a stored figure may be
TILES = {
    STORED_BITS: "stored bits a weight",
    STORED_DB: "stored draft, dB",
    BSFP_BITS: "BSFP bits a weight",
    BSFP_DB: "BSFP draft, dB",
    PAPER_DB: "paper's table, dB",
    MXFP4_DB: "MXFP4, dB",
}


@dataclass(frozen=True)
class Strip:
    """The three drafts of a row as dots on a common decibel axis; None where there is nothing to show."""

    fitted: float | None
    paper: float | None
    mxfp4: float | None
    label: str


def write_page(inspection: Inspection, path: Path) -> None:
    """Write the page; an existing file is overwritten."""
    path.write_text(render_page(inspection), encoding="utf-8")


def render_page(inspection: Inspection) -> str:
    """The page's text. Every name from a file is escaped, by the template engine."""
    total = inspection.total
    span = _span((*inspection.groups, *inspection.tensors, total))
    groups = [] if inspection.per == "tensor" else [_row(row, inspection.per, span) for row in inspection.groups]
    tensors, sums = [_row(row, "tensor", span) for row in inspection.tensors], _row(total, "total", span)
    columns = list(TILES)
    if inspection.kind != "package" or _is_nothing(STORED_BITS, (*tensors, sums)):
        columns = [column for column in columns if column not in REPEATED]
    stored = _join_stored(columns, (*groups, *tensors, sums))
    return render(
        "page.html.j2",
        inspection=inspection,
        source=printable(inspection.source),
        total=sums,
        columns={
            column: f"{column},\nstored" if column in stored else column.replace(" ", "\n", 1) for column in columns
        },
        stored=stored,
        tiles={column: f"{TILES[column]}{', stored' if column in stored else ''}" for column in columns},
        exponents=total.exponents,
        histogram=histogram(total.exponents),
        scale_width=SCALE_WIDTH,
        span=span,
        groups=groups,
        tensors=tensors,
        is_package=inspection.kind == "package",
        has_brackets=any(row["figures"][column].startswith("(") for row in (*groups, *tensors) for column in stored),
        number=number,
    )


def _row(row: Statistics, per: str, span: tuple[float, float] | None) -> dict[str, Any]:
    """One table row as text; `figures` by column, `strip` is its picture."""
    fitted, paper, mxfp4 = drafts(row)
    return {
        "name_parts": re.split(r"(?<=[._])", group_name(row, per)),  # where a long one may be broken
        "about": _about(row),
        "weights": f"{row.num_weights:,}",
        "max_abs": magnitude(row.exponents.max_abs if row.exponents else None),
        "window": window(row),
        "outside": outside(row).replace("< ", "<\N{NO-BREAK SPACE}"),
        "figures": {
            STORED_BITS: stored_bits(row),
            STORED_DB: stored_draft(row),
            BSFP_BITS: bits(row),
            BSFP_DB: fitted,
            PAPER_DB: paper,
            MXFP4_DB: mxfp4,
        },
        "strip": Strip(
            _position(row.bsfp_draft_sqnr_db, span),
            _position(row.bsfp_paper_draft_sqnr_db, span),
            _position(row.mxfp4_sqnr_db, span),
            f"fitted {fitted}, MXFP4 {mxfp4}, paper {paper} dB",
        ),
    }


def _about(row: Statistics) -> str:
    """A tensor's dtype and shape, what became of it and why; nothing of several tensors."""
    if row.shape is None:
        return ""
    shape = " × ".join(str(length) for length in row.shape)
    what = "; ".join(part for part in (row.codec, row.reason, row.note) if part)
    return ", ".join(part for part in (f"{row.dtype or ''} {shape}".strip(), what) if part)


def _join_stored(columns: list[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Drop each column of stored figures that only repeats another one; returns those others, which then say both.

    In such a column the figures of what is stored otherwise, tensors kept in 16 bits, stand in brackets.
    """
    joined = []
    for stored, others in REPEATED.items():
        own = [row["figures"] for row in rows if row["figures"][stored] != NOTHING]
        same = [other for other in others if all(figures[stored] == figures[other] for figures in own)]
        if stored not in columns or not same:
            continue
        columns.remove(stored)
        joined.append(same[0])
        for row in rows:
            figures = row["figures"]
            if figures[stored] == NOTHING != figures[same[0]]:
                figures[same[0]] = f"({figures[same[0]]})"
    return joined


def _is_nothing(column: str, rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["figures"][column] == NOTHING for row in rows)


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
