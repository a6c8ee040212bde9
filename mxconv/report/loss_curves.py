"""A picture of the losses of a training: a smoothed line for each part, with the stages marked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mxconv.arrays import F64
from mxconv.report.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, write_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, "#F0E442")
SMOOTHED = 0.02  # of all steps are averaged


def write_loss_curves(log: Path, path: Path, title: str) -> None:
    """Draw the log of a training; an existing file is overwritten.

    Args:
        log: a line of JSON a step, with `stage` and `parts`.
        path: of the picture.
        title: above it.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    write_picture(path, lambda figure: _draw(figure, lines, title))


def _draw(figure: "Figure", lines: list[dict[str, Any]], title: str) -> None:
    figure.set_size_inches(9, 4.8)
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


def _mark_stages(axes: Any, lines: list[dict[str, Any]]) -> None:
    first: dict[str, int] = {}
    for line in lines:
        first.setdefault(line["stage"], line["step"])
    for stage, step in first.items():
        if step:
            axes.axvline(step, color=GREY, lw=0.8, ls="--")
        axes.annotate(f" {stage}", (step, 1), xycoords=("data", "axes fraction"), va="top", color=GREY)


def _smoothed(losses: F64) -> F64:
    """The mean of each loss and of the 2% of all steps before it."""
    width = max(round(SMOOTHED * len(losses)), 1)
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    begins = np.maximum(ends - width, 0)
    means: F64 = (sums[ends] - sums[begins]) / (ends - begins)
    return means
