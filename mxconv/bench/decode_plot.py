"""Decodes as pictures: acceptance prompt by prompt and place by place. PNG.

Source: the views are those of ML-SpecQD (arXiv 2503.13565), Figs. 5 and 6.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.bench.decode_result import DecodeResult
from mxconv.bench.machine import Machine
from mxconv.report.picture import BLUE, GREEN, ORANGE, SETTINGS, VERMILION

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLOURS = (BLUE, ORANGE, GREEN, VERMILION, "#CC79A7", "#56B4E9")
MARKERS = "os^DvP"
PANEL_INCHES = (5.2, 3.4)


def write_acceptance_by_prompt(results: Sequence[DecodeResult], machine: Machine, path: Path) -> None:
    """A panel a strategy, a point a prompt and level; prompts in the order of the first strategy's acceptance."""
    drafted = [result for result in results if len(result.levels) > 1]
    first = drafted[0].acceptance_by_prompt[0]
    order = sorted(range(len(first)), key=lambda prompt: -(first[prompt] or 0.0))
    colours = _by_level(drafted)

    def draw(axes: "Axes", result: DecodeResult) -> None:
        for level, rates, mean in zip(
            result.levels[1:], result.acceptance_by_prompt, result.acceptance_rates, strict=True
        ):
            points = [(place, rate) for place, prompt in enumerate(order, 1) if (rate := rates[prompt]) is not None]
            if mean is None:
                continue
            colour, marker = colours[level]
            x, y = [place for place, _ in points], [rate for _, rate in points]
            axes.scatter(x, y, color=colour, marker=marker, s=18, label=level)
            axes.vlines(x, 0, y, color=colour, alpha=0.25, lw=1)
            axes.axhline(mean, color=colour, lw=1, ls="--")
            axes.annotate(f" {mean:.2f}", (1, mean), xycoords=("axes fraction", "data"), color=colour, va="center")
        axes.set_ylim(0, 1.03)
        axes.set_xlim(0.3, len(order) + 0.7)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(f"prompt, by the acceptance of {drafted[0].strategy}")
        axes.set_ylabel("accepted / proposed (dashed: all prompts)")

    _write_panels(drafted, draw, f"Acceptance by prompt: {_run(drafted[0])}", machine, path)


def write_acceptance_by_position(results: Sequence[DecodeResult], machine: Machine, path: Path) -> None:
    """A panel a strategy, a line a level: how often the token at each place of a proposal is accepted."""
    drafted = [result for result in results if len(result.levels) > 1]
    colours = _by_level(drafted)
    most = max(len(rates) for result in drafted for rates in result.acceptance_by_position)

    def draw(axes: "Axes", result: DecodeResult) -> None:
        for level, rates in zip(result.levels[1:], result.acceptance_by_position, strict=True):
            if rates:
                colour, marker = colours[level]
                axes.plot(range(1, len(rates) + 1), rates, color=colour, marker=marker, ms=4, lw=1.4, label=level)
        axes.set_ylim(0, 1.03)
        axes.set_xlim(0.5, max(most, 1) + 0.5)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("place in the proposal")
        axes.set_ylabel("accepted / proposed there")

    _write_panels(drafted, draw, f"Acceptance by position: {_run(drafted[0])}", machine, path)


def _by_level(results: Sequence[DecodeResult]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for every draft level, the same in all panels."""
    names = dict.fromkeys(level for result in results for level in result.levels[1:])
    return {name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}


def _run(result: DecodeResult) -> str:
    prompts = f"{result.num_prompts} prompt{'' if result.num_prompts == 1 else 's'}"
    return f"{result.levels[0]} decodes {prompts}, {result.num_tokens} tokens"


def _write_panels(
    results: Sequence[DecodeResult],
    draw: "Callable[[Axes, DecodeResult], None]",
    title: str,
    machine: Machine,
    path: Path,
) -> None:
    def draw_one(axes: "Axes", result: DecodeResult) -> None:
        axes.set_title(f"{result.strategy}: {result.speedup:.2f} x greedy")
        draw(axes, result)
        axes.grid(axis="y", alpha=0.25)

    _write(results, draw_one, title, machine, path)


def _write(
    panels: Sequence[Any], draw: "Callable[[Axes, Any], None]", title: str, machine: Machine, path: Path
) -> None:
    """A picture with two panels a row; an existing file is overwritten."""
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_columns = min(len(panels), 2)
    num_rows = -(-len(panels) // num_columns)
    width, height = PANEL_INCHES
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width * max(num_columns, 1.4), height * num_rows + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for unused in grid[len(panels) :]:
            unused.set_axis_off()
        for axes, panel in zip(grid, panels, strict=False):
            draw(axes, panel)
        handles: dict[str, Artist] = {}
        for axes in grid:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if handles:
            labels = list(handles)
            figure.legend(list(handles.values()), labels, loc="outside lower center", ncols=len(labels), frameon=False)
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        figure.suptitle(f"{title}, {threads}, {machine.cpu}", fontsize=11, fontweight="bold")
        figure.savefig(path, dpi=150, format="png")
