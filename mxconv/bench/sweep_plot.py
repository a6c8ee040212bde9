"""A sweep as a picture: the speed-up measured beside the one predicted, on one scale; acceptance and error below. PNG.

Source: the first map is SPEQ's (arXiv 2510.18525), Fig. 9, where too a square stands for the default.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mxconv.bench.machine import Machine
from mxconv.bench.sweep import Sweep, Table, highest
from mxconv.report.plot import SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap, Normalize

SPEQ_DEFAULT = 16, 0.6  # tokens at most, threshold
PANEL_INCHES = (5.0, 3.2)
SPEEDUPS, RATES, ERRORS = ("RdBu", 0.2, 0.8), ("Greys", 0.05, 0.5), ("PuOr", 0.2, 0.8)  # parts of colour maps
LOUD_ERROR = 0.25  # full colour; with larger ones, the largest
MEASURED_COLOUR, PREDICTED_COLOUR, SPEQ_COLOUR = "#000000", "#009E73", "#E69F00"  # of squares around cells


def write_sweep(sweep: Sweep, machine: Machine, path: Path) -> None:
    """Maps with length up and threshold across; those on the right are missing where nothing was predicted.

    An existing file is overwritten.
    """
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import CenteredNorm, FuncNorm, Normalize
    from matplotlib.figure import Figure

    speedups = [*_values(sweep.decode_speedup), *_values(sweep.predicted_speedup)]
    most = max(1.01, *(max(speedup, 1 / speedup) for speedup in [1.0, *speedups]))
    # half and twice the speed of plain decoding are as far from white; matplotlib asks for the logarithm of 0 too
    scale = FuncNorm((lambda speedup: np.log(np.maximum(speedup, 1e-9)), np.exp), 1 / most, most)
    shares = _values(sweep.acceptance_rate) or [0.0]
    num_columns = 1 if sweep.mean_error is None else 2
    with matplotlib.rc_context(SETTINGS):
        size = PANEL_INCHES[0] * max(num_columns, 1.4) + 1.2, PANEL_INCHES[1] * 2 + 1
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(2, num_columns, squeeze=False)
        _draw(upper[0], sweep, "measured, behind the prompts", sweep.decode_speedup, SPEEDUPS, scale)
        _draw(lower[0], sweep, "accepted / proposed", sweep.acceptance_rate, RATES, Normalize(min(shares), max(shares)))
        bar = figure.colorbar(
            ScalarMappable(scale, _part(*SPEEDUPS)), ax=list(upper), label="speed-up over plain decoding"
        )
        bar.ax.set_ylim(min([1.0, *speedups]), max([1.01, *speedups]))
        if sweep.mean_error is not None:
            _draw(upper[1], sweep, "predicted", sweep.predicted_speedup, SPEEDUPS, scale)
            errors = CenteredNorm(0.0, max(LOUD_ERROR, abs(sweep.worst_error or 0.0)))
            title = f"predicted / measured - 1: mean {sweep.mean_error:.0%}, worst {sweep.worst_error:+.0%}"
            _draw(lower[1], sweep, title, sweep.prediction_error, ERRORS, errors, "{:+.0%}")
        _mark(upper, sweep)
        handles, labels = upper[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, title=_inputs(sweep), loc="outside lower center", ncols=max(len(labels), 1), frameon=False
        )
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        figure.suptitle(
            f"{sweep.level} below {sweep.target}: length and threshold, {threads}, {machine.cpu}",
            fontsize=11,
            fontweight="bold",
        )
        figure.savefig(path, dpi=150, format="png")


def _inputs(sweep: Sweep) -> str | None:
    if sweep.acceptance is None or sweep.costs is None:
        return None
    return (
        f"predicted from acceptance {sweep.acceptance:.3f} and, in plain passes, {sweep.costs.draft_token:.2f} for a "
        f"draft token, {sweep.costs.verification:.2f} + {sweep.costs.verified_token:.3f} n for verification of n"
    )


def _part(name: str, low: float, high: float) -> "ListedColormap":
    """A colour map without its darkest colours, on which numbers and squares are hard to see."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[name](np.linspace(low, high, 256)))


def _draw(
    axes: "Axes",
    sweep: Sweep,
    title: str,
    table: Table,
    colours: tuple[str, float, float],
    scale: "Normalize",
    form: str = "{:.2f}",
) -> None:
    """A map with a number in each cell."""
    values = [[float("nan") if value is None else value for value in row] for row in table]
    axes.imshow(values, origin="lower", aspect="auto", cmap=_part(*colours), norm=scale)
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            if value is not None:
                axes.text(x, y, form.format(value), ha="center", va="center", fontsize=8)
    axes.set_title(title)
    axes.set_xticks(range(len(sweep.confidence)), [f"{threshold:g}" for threshold in sweep.confidence])
    axes.set_yticks(range(len(sweep.num_draft_tokens)), [str(number) for number in sweep.num_draft_tokens])
    axes.set_xlabel("confidence threshold")
    axes.set_ylabel("draft tokens a round, at most")
    axes.tick_params(length=0)


def _mark(maps: "list[Axes]", sweep: Sweep) -> None:
    """Squares around cells of both speed-ups' maps; those of one cell lie inside each other."""
    from matplotlib.patches import Rectangle

    length, threshold = SPEQ_DEFAULT
    speq = None
    if length in sweep.num_draft_tokens and threshold in sweep.confidence:
        speq = sweep.num_draft_tokens.index(length), sweep.confidence.index(threshold)
    marks = [
        (speq, SPEQ_COLOUR, f"SPEQ's default ({length}, {threshold:g})"),
        (highest(sweep.decode_speedup), MEASURED_COLOUR, "fastest measured"),
        (highest(sweep.predicted_speedup), PREDICTED_COLOUR, "fastest predicted"),
    ]
    for axes in maps:
        for nesting, (cell, colour, label) in enumerate(marks):
            if cell is not None:
                (y, x), half = cell, 0.47 - 0.06 * nesting
                axes.add_patch(
                    Rectangle((x - half, y - half), 2 * half, 2 * half, fill=False, ec=colour, lw=2, label=label)
                )


def _values(table: Table) -> list[float]:
    return [value for row in table for value in row if value is not None]
