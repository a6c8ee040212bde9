"""An inspection as one HTML page: exponents, drafts, and the figures of every group and tensor."""

from mxconv.report.html_page import PageSection, render_page
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_picture import draw_inspection
from mxconv.report.inspection_tables import LEGEND, counted, group_table, heading, notes, tensor_table, window_line
from mxconv.report.picture import picture_uri


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
    uri = picture_uri(lambda figure: draw_inspection(figure, inspection))
    description = f"Weights by exponent field of {exponents.float_format.name}, and the drafts by {inspection.per}"
    return PageSection("Exponents of all tensors", [window_line(exponents)], facts, [(description, uri)])
