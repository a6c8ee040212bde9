"""An inspection as charts and as one HTML page: where the exponents lie, and how near each 4-bit draft comes."""

from mxconv.report.charts import Chart, Series, plain
from mxconv.report.exponents import ExponentCounts
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_tables import (
    LEGEND,
    counted,
    group_name,
    group_table,
    heading,
    notes,
    tensor_table,
    window_line,
)
from mxconv.report.page import PageSection, render_page

DRAFTS = {
    "BSFP, fitted table": "bsfp_draft_sqnr_db",
    "MXFP4": "mxfp4_sqnr_db",
    "BSFP, paper's table": "bsfp_paper_draft_sqnr_db",
}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_GROUPS = 160  # a taller picture cannot be read any more


def render_inspection_page(inspection: Inspection) -> str:
    """The text of the page."""
    tables = [tensor_table(inspection)]
    if inspection.per != "tensor":
        tables.insert(0, group_table(inspection))
    else:
        tables[0].notes += LEGEND
    sections = [exponents_section(inspection), *(PageSection(tables=[table]) for table in tables)]
    return render_page(heading(inspection), [counted(inspection)], notes(inspection), sections)


def exponents_section(inspection: Inspection) -> PageSection:
    """The histogram of all tensors and the decibels of their drafts, with the figures of the total."""
    total, exponents = inspection.total, inspection.total.exponents
    if exponents is None or exponents.window is None:
        line = "No weight to count: none is a 16-bit float that is finite and not zero, or both formats are mixed."
        return PageSection("Exponents of all tensors", [line])
    facts = {
        "weights": f"{total.num_weights:,}",
        "largest magnitude": f"{exponents.max_abs:.4g}",
        "zeros": f"{exponents.num_zero:,}",
        "non-finite": f"{exponents.num_nonfinite:,}",
    }
    title, charts = inspection_charts(inspection)
    return PageSection("Exponents of all tensors", [window_line(exponents)], facts, charts, title)


def inspection_charts(inspection: Inspection) -> tuple[str, list[Chart]]:
    """A title; the exponents of all tensors, and the signal-to-noise ratios of the drafts by group."""
    title = plain(f"{inspection.source} ({inspection.kind})")
    return title, [_exponents(inspection.total.exponents), _drafts(inspection)]


def _exponents(exponents: ExponentCounts | None) -> Chart:
    """How many weights each exponent field has, inside and outside the window of 16."""
    if exponents is None or exponents.window is None:
        return Chart("Exponents of all tensors", "")
    (low, high), counts = exponents.window, exponents.nonzero
    fields = [field for field in range(len(counts)) if counts[field]]
    first, last = min(low, fields[0]), max(high, fields[-1])
    inside, outside = (
        [(field, int(counts[field])) for field in fields if (low <= field <= high) == is_inside]
        for is_inside in (True, False)
    )
    ticks = range(high - (high - first) // 3 * 3, last + 1, 3 if last - first < 40 else 12)
    return Chart(
        "Exponents of all tensors",
        f"exponent field of {exponents.float_format.name}, and the least magnitude of its weights",
        f"weights ({exponents.scale} scale)",
        [
            Series(f"in the window {low}..{high}", inside, "bars"),
            Series("outside", outside, "bars"),
        ],
        y_scale=exponents.scale,
        y_limits=(0.5 if exponents.scale == "log" else 0, None),
        x_limits=(first - 1, last + 1),
        x_ticks={f: f"{f}\n2{str(exponents.value_exponent(f)).translate(SUPERSCRIPTS)}" for f in ticks},
    )


def _drafts(inspection: Inspection) -> Chart:
    """The decibels of each draft by group, the total last."""
    groups = [group for group in inspection.groups if group.bsfp_draft_sqnr_db is not None][:MOST_GROUPS]
    rows, series = [*groups, inspection.total], []
    for label, key in DRAFTS.items():
        found = [(value, place) for place, row in enumerate(rows) if (value := getattr(row, key)) is not None]
        series.append(Series(label, found, "points"))
    return Chart(
        f"4-bit drafts by {inspection.per}",
        "signal to noise of the draft (dB), higher is better",
        series=series,
        rows=[*(group_name(group, inspection.per) for group in groups), "total"],
    )
