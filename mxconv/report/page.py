"""An inspection as one HTML page that needs nothing else: no network and no scripts, dark mode, phones."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mxconv.report.bars import BarChart, bar_chart
from mxconv.report.inspection import Inspection
from mxconv.report.statistics import Statistics
from mxconv.report.text import (
    bits,
    drafts,
    group_name,
    magnitude,
    number,
    outside,
    percent,
    printable,
    stored_bits,
    stored_draft,
    window,
)

TEMPLATE = "page.html.j2"
CHART_WIDTH, CHART_HEIGHT = 720, 260  # in units of the SVG's view box
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
    from jinja2 import Environment, StrictUndefined  # imported here: only pages need it

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("mxconv.report").joinpath(TEMPLATE).read_text("utf-8"))
    total = inspection.total
    chart = bar_chart(total.exponents) if total.exponents is not None else None
    span = _span((*inspection.groups, *inspection.tensors, total))
    groups = [] if inspection.per == "tensor" else [_row(row, inspection.per, span) for row in inspection.groups]
    return template.render(
        inspection=inspection,
        source=printable(inspection.source),
        total=_row(total, "total", span),
        exponents=total.exponents,
        chart=chart,
        svg=_svg(chart) if chart else None,
        chart_size=(CHART_WIDTH, CHART_HEIGHT),
        scale_width=SCALE_WIDTH,
        span=span,
        groups=groups,
        tensors=[_row(row, "tensor", span) for row in inspection.tensors],
        is_package=inspection.kind == "package",
        magnitude=magnitude,
        number=number,
        percent=percent,
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


def _svg(chart: BarChart) -> list[dict[str, Any]]:
    """Places of the bars in the view box, with their labels; the window's shade is drawn behind them."""
    step = CHART_WIDTH / len(chart.bars)
    top, bottom = 24, CHART_HEIGHT - 44
    return [
        {
            "x": round(number * step, 2),
            "width": round(step * 0.86, 2),
            "step": round(step, 2),
            "middle": round((number + 0.43) * step, 2),
            "y": round(bottom - bar.length * (bottom - top), 2),
            "height": round(bar.length * (bottom - top), 2),
            "bottom": bottom,
            "inside": bar.place == "inside",
            "label": bar.label.replace(" ", ""),
            "power": bar.magnitudes.replace("2^", "") if bar.first == bar.last else "",
            "title": f"exponent {bar.label}, magnitude {bar.magnitudes}: {bar.count:,} ({percent(bar.fraction)})",
        }
        for number, bar in enumerate(chart.bars)
    ]
