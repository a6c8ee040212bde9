"""Pictures with matplotlib: colours, settings, and a figure as a PNG or SVG file or as an image inside a page."""

from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.report.output_file import check_suffix
from mxconv.report.tables import printable

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# the Okabe-Ito colours, which people with any colour vision can tell apart
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"
PURPLE, SKY = "#CC79A7", "#56B4E9"
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mxconv",  # the same bytes for the same figures
    "text.parse_math": False,  # a tensor's name is no formula
}


def write_picture(path: Path, draw: Callable[["Figure"], None]) -> None:
    """Draw a figure and write it as its suffix says; an existing file is overwritten.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    path.write_bytes(_drawn(draw, path.suffix.lower()[1:]))


def picture_uri(draw: Callable[["Figure"], None]) -> str:
    """The figure as an SVG in a data URI, which a page can show without another file."""
    return f"data:image/svg+xml;base64,{b64encode(_drawn(draw, 'svg')).decode()}"


def label_log_axis(axis: "Axis") -> None:
    """Label powers of ten, and two and five times them, with plain numbers; matplotlib's default is formulas."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def plain(text: str) -> str:
    """The text in characters that the font has, cut to its last 60: the end of a name tells more."""
    plain = printable(text).encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= 60 else f"...{plain[-57:]}"


def _drawn(draw: Callable[["Figure"], None], suffix: str) -> bytes:
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(found, dpi=150, format=suffix, metadata={"Date": None} if suffix == "svg" else None)
    return found.getvalue()
