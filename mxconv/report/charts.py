"""Charts as data, and matplotlib as what draws them: into a PNG or SVG file, or as an image inside a page.

A picture is some charts with one title and one legend. A label has one colour and one marker in all of them.
Pages are HTML files that need no other file, no script and no network: sections of facts, tables and charts.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mxconv.cost.surfaces import Surface
from mxconv.errors import MxconvError
from mxconv.report.tables import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
from importlib.resources import files

from mxconv.report.tables import TextTable

# the Okabe-Ito colours, which people with any colour vision can tell apart, and two more; markers do without colour
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#5D3A9B")
STYLES = tuple(zip(COLOURS, "os^DPvX*", strict=True))
GREY = "#555555"
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mxconv",  # the same bytes for the same charts
    "text.parse_math": False,  # a tensor's name is no formula
}
PANEL_INCHES, ROW_INCHES = (5.6, 4.4), 0.24
MIN_INCHES = 8.8  # the legend's width
MOST_CELLS = 11  # of a map, along each axis

Scale = Literal["linear", "log"]

SUFFIXES = (".png", ".svg")  # of pictures


def check_suffix(path: Path) -> None:
    """Raise MxconvError unless the name of a file ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise MxconvError(
            f"{path}: a picture that ends in {path.suffix!r}; .png or .svg is required. Choose one of the two."
        )


@dataclass
class Series:
    """Points of one label. Those without a label, and limits, are not in the legend.

    Args:
        kind: a line with markers, a faint line without, a dashed grey limit, points, or bars.
        spread: least and largest values around each point: a band of lines, error bars of points in rows.
    """

    label: str
    points: Sequence[tuple[float, float]]
    kind: Literal["line", "faint", "limit", "points", "bars"] = "line"
    spread: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass
class Chart:
    """Series over two axes.

    Args:
        rows: names of rows from the top, for points whose y is the number of a row.
        x_ticks: texts at places of the x axis; chosen by the scale where there are none.
        marks: texts at places.
        divisions: texts at vertical lines.
    """

    title: str
    x_label: str
    y_label: str = ""
    series: list[Series] = field(default_factory=list)
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float | None, float | None] | None = None
    rows: Sequence[str] = ()
    x_ticks: Mapping[int, str] = field(default_factory=dict)
    marks: Sequence[tuple[float, float, str]] = ()
    divisions: Mapping[float, str] = field(default_factory=dict)


def write_picture(path: Path, title: str, charts: Sequence[Chart | Surface]) -> None:
    """Draw charts into a file of the format that its suffix names; an existing file is overwritten.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    path.write_bytes(_drawn(title, charts, path.suffix.lower()[1:]))


def picture_uri(title: str, charts: Sequence[Chart | Surface]) -> str:
    """The charts as an SVG in a data URI, which a page can show without another file."""
    return f"data:image/svg+xml;base64,{b64encode(_drawn(title, charts, 'svg')).decode()}"


def plain(text: str) -> str:
    """The text in characters that the font has, cut to its last 60: the end of a name tells more."""
    plain = printable(text).encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= 60 else f"...{plain[-57:]}"


def roofline(
    title: str,
    x_label: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    peaks: Mapping[Any, float],
    bandwidth: float,
) -> Chart:
    """Rates over multiply-adds a byte, below the roofs of bandwidth (GB/s) and of each peak; both axes logarithmic.

    Source:
        Williams et al., Roofline, CACM 2009; ML-SpecQD (arXiv 2503.13565), Fig. 8.
    """
    x = [place for own in points.values() for place, _ in own]
    low, high = min(x) / 2, max(x) * 4
    by_peak: dict[float, str] = {}
    for form, peak in peaks.items():
        by_peak[peak] = f"{by_peak[peak]}, {form}" if peak in by_peak else form
    reached = {peak: forms for peak, forms in by_peak.items() if peak / bandwidth < high}
    end = min(max(by_peak) / bandwidth, high)
    series = [Series("", [(low, bandwidth * low), (end, bandwidth * end)], "limit")]
    series += [Series("", [(peak / bandwidth, peak), (high, peak)], "limit") for peak in reached]
    series += [Series(label, own) for label, own in points.items()]
    middle = (low * low * end) ** (1 / 3)
    marks = [(middle, middle * bandwidth, f"{bandwidth:.0f} GB/s")]
    marks += [(high, peak, f"{forms} {peak:.0f}") for peak, forms in reached.items()]
    y_label = "giga multiply-adds a second"
    return Chart(title, x_label, y_label, series, "log", "log", x_limits=(low, high), marks=marks)


def _drawn(title: str, charts: Sequence[Chart | Surface], suffix: str) -> bytes:
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, title, charts)
        figure.savefig(found, dpi=150, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return found.getvalue()


def _draw(figure: "Figure", title: str, charts: Sequence[Chart | Surface]) -> None:
    """Draw at most two charts beside each other, a legend below them, and the title above."""
    num_columns = min(len(charts), 2)
    lines = [charts[begin : begin + num_columns] for begin in range(0, len(charts), num_columns)]
    width, height = PANEL_INCHES
    rows = [max(len(each.rows) if isinstance(each, Chart) else 0 for each in line) for line in lines]
    heights = [max(height, 1.6 + ROW_INCHES * num_rows) for num_rows in rows]
    figure.set_size_inches(max(width * num_columns, MIN_INCHES), sum(heights))
    grid = list(figure.subplots(len(lines), num_columns, squeeze=False, height_ratios=heights).flat)
    labels = dict.fromkeys(s.label for each in charts if isinstance(each, Chart) for s in each.series)
    styles = dict(zip((label for label in labels if label), cycle(STYLES), strict=False))
    legend: dict[str, Any] = {}
    for axes in grid[len(charts) :]:
        axes.set_axis_off()
    for axes, chart in zip(grid, charts, strict=False):
        axes.set_title(chart.title, fontsize=9)
        if isinstance(chart, Surface):
            _draw_surface(figure, axes, chart)
            continue
        _draw_chart(axes, chart, styles)
        handles, names = axes.get_legend_handles_labels()
        legend |= dict(zip(names, handles, strict=True))
    if legend:
        columns = min(len(legend), 5)
        figure.legend([*legend.values()], [*legend], loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(title, fontsize=11, fontweight="bold")


def _draw_chart(axes: "Axes", chart: Chart, styles: Mapping[str, tuple[str, str]]) -> None:
    if not any(series.points for series in chart.series):
        axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for series in chart.series:
        colour, marker = styles.get(series.label, (GREY, ""))
        _draw_series(axes, series, colour, marker, is_in_rows=bool(chart.rows))
    axes.set(xscale=chart.x_scale, yscale=chart.y_scale, xlabel=chart.x_label, ylabel=chart.y_label)
    for axis, scale in ((axes.xaxis, chart.x_scale), (axes.yaxis, chart.y_scale)):
        _label_axis(axis, scale)
    if chart.x_ticks:
        axes.set_xticks(list(chart.x_ticks), list(chart.x_ticks.values()))
        axes.xaxis.minorticks_off()
    if chart.x_limits:
        axes.set_xlim(*chart.x_limits)
    if chart.y_limits:
        axes.set_ylim(*chart.y_limits)
    if chart.rows:
        axes.set_yticks(range(len(chart.rows)), [plain(name) for name in chart.rows])
        axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    axes.grid(axis="x" if chart.rows else "y", alpha=0.25)
    for x, y, text in chart.marks:
        axes.annotate(text, (x, y), (-4, 3), textcoords="offset points", ha="right", fontsize=8, color=GREY)
    for x, text in chart.divisions.items():
        axes.axvline(x, color=GREY, lw=0.8, ls="--")
        axes.annotate(f" {text}", (x, 1), xycoords=("data", "axes fraction"), va="top", color=GREY)


def _draw_series(axes: "Axes", series: Series, colour: str, marker: str, is_in_rows: bool) -> None:
    x, y, label = [x for x, _ in series.points], [y for _, y in series.points], series.label or None
    match series.kind:
        case "bars":
            axes.bar(x, y, color=colour, width=0.85, label=label)
        case "points":
            axes.scatter(x, y, color=colour, marker=marker, s=28, label=label, zorder=2)
        case "faint":
            axes.plot(x, y, color=colour, alpha=0.18, lw=0.7)
        case "limit":
            axes.plot(x, y, color=GREY, ls="--", lw=1.2, label=label)
        case _:
            axes.plot(x, y, color=colour, marker=marker if len(x) <= 64 else "", ms=5, lw=1.4, label=label)
    if series.spread is not None:
        low, high = series.spread
        if is_in_rows:
            axes.hlines(y, low, high, color=colour, lw=0.8)
        else:
            axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)


def _label_axis(axis: "Axis", scale: Scale) -> None:
    """Label with plain numbers, on logarithmic scales powers of ten, and two and five times them."""
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if scale == "log":
        axis.set_minor_formatter(lambda value, _: f"{value:,.10g}" if f"{value:e}"[0] in "25" else "")


def _draw_surface(figure: "Figure", axes: "Axes", surface: Surface) -> None:
    """Draw a map whose colours turn at 1, where speculation begins to pay, with the figure in each cell."""
    from matplotlib.colors import TwoSlopeNorm

    rows, columns = (range(0, len(places), -(-len(places) // MOST_CELLS)) for places in (surface.rows, surface.columns))
    shown = [[surface.values[row][column] for column in columns] for row in rows]
    top = max(map(max, surface.values))
    image = axes.imshow(shown, origin="lower", aspect="auto", cmap="RdBu", norm=TwoSlopeNorm(1.0, 0.0, max(top, 1.2)))
    for row, values in enumerate(shown):
        for column, value in enumerate(values):
            shade = "white" if value < 0.35 or value > 1 + 0.7 * (top - 1) else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(len(columns)), [_short(surface.columns[place]) for place in columns], fontsize=8)
    axes.set_yticks(range(len(rows)), [_short(surface.rows[place]) for place in rows], fontsize=8)
    axes.set(xlabel=surface.column_name, ylabel=surface.row_name)
    figure.colorbar(image, ax=axes)


def _short(value: float) -> str:
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


FOLDER = files("mxconv.report").joinpath("templates")


@dataclass
class PageSection:
    """A part of a page.

    Args:
        title: its heading; an empty one has none.
        lines: paragraphs below the heading.
        facts: figures by name, shown as tiles.
        charts: drawn as one picture.
        charts_title: above that picture, and its description for those who do not see it.
        tables: with their titles.
    """

    title: str = ""
    lines: Sequence[str] = ()
    facts: dict[str, str] = field(default_factory=dict)
    charts: Sequence[Chart | Surface] = ()
    charts_title: str = ""
    tables: Sequence[TextTable] = ()

    @property
    def picture(self) -> str:
        """The charts as a data URI."""
        return picture_uri(self.charts_title, self.charts)


def render_page(title: str, subtitles: Sequence[str], notes: Sequence[str], sections: Sequence[PageSection]) -> str:
    """The text of a page; every value is escaped, and a value that the template lacks is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # imported here: only pages need it

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda part: FOLDER.joinpath(part).read_text("utf-8")),
    )
    return environment.get_template("page.html.j2").render(
        title=title, subtitles=subtitles, notes=notes, sections=sections
    )
