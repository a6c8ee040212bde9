"""The losses of a training as a picture: a line a part, smoothed, with the stages marked. PNG or SVG."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arrays import F64
from mxconv.report.plot import BLUE, GREEN, GREY, ORANGE, SETTINGS, VERMILION, check_suffix

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, "#56B4E9", "#CC79A7", "#F0E442")
SMOOTHED = 0.02  # of all steps are averaged


def write_loss_curves(log: Path, path: Path, title: str) -> None:
    """Draw what `fit` logged; an existing file is overwritten.

    Args:
        log: a line of JSON a step, with `stage` and `parts`.
        path: of the picture.
        title: above it.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(9, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        steps = np.array([line["step"] for line in lines])
        for number, part in enumerate(lines[0]["parts"]):
            losses = np.array([line["parts"][part] for line in lines])
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(steps, losses, color=colour, alpha=0.18, lw=0.7)
            smooth = _smoothed(losses)
            axes.plot(steps, smooth, color=colour, lw=1.6, label=f"{part}: {smooth[-1]:.2f}")
        _mark_stages(axes, lines)
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats a token)")
        axes.set_xlim(0, len(lines))
        axes.grid(axis="y", alpha=0.25)
        axes.legend(frameon=False)
        axes.set_title(title, loc="left", fontweight="bold")
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, format=path.suffix.lower()[1:], metadata={"Date": None} if is_svg else None)


def _mark_stages(axes: Any, lines: list[dict[str, Any]]) -> None:
    first: dict[str, int] = {}
    for line in lines:
        first.setdefault(line["stage"], line["step"])
    for stage, step in first.items():
        if step:
            axes.axvline(step, color=GREY, lw=0.8, ls="--")
        axes.annotate(f" {stage}", (step, 1), xycoords=("data", "axes fraction"), va="top", color=GREY)


def _smoothed(losses: F64) -> F64:
    """Means over the steps before, as many as make a smooth line."""
    width = max(round(SMOOTHED * len(losses)), 1)
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    begins = np.maximum(ends - width, 0)
    means: F64 = (sums[ends] - sums[begins]) / (ends - begins)
    return means
