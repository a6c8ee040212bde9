"""Figures as pictures, PNG or SVG: products and decodes.

Source: bandwidth, roofline and the views of acceptance are those of ML-SpecQD (arXiv 2503.13565), Figs. 5 to 8.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mxconv.bench.operands import ProductResult
from mxconv.bench.rates import spread
from mxconv.report.picture import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    label_log_axis,
    write_picture,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mxconv.bench.decode_speed import DecodeResult
    from mxconv.bench.gpu_kernel_speed import GpuMachine
    from mxconv.bench.kernel_speed import KernelResult
    from mxconv.bench.machine import Machine

AnyResult = TypeVar("AnyResult", bound=ProductResult)
STYLES = {
    "bf16": (BLUE, "o"),
    "fp16": (SKY, "v"),
    "bsfp-full": (GREEN, "D"),
    "bsfp-draft": (VERMILION, "^"),
    "mxint8": ("#8C6D31", "X"),
    "mx2": ("#5D3A9B", "P"),
    "mxfp4-int8": (ORANGE, "s"),
    "mxfp4-fp32": (PURPLE, "P"),
    "mxfp4-bf16": (PURPLE, "P"),
}
PEAKS = {  # the kernels that share a peak
    "int8": ("bsfp-draft", "mxint8", "mx2", "mxfp4-int8"),
    "bf16": ("bf16", "bsfp-full"),
    "fp32": ("fp16", "mxfp4-fp32"),
}
LEVEL_STYLES = tuple(zip((BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY), "os^DvP", strict=True))
PANEL_INCHES = (5.2, 4.2)
MIN_INCHES = 8.8  # the legend's width

Draw = Callable[["Axes"], None]


def _write_panels(path: Path, title: str, panels: Mapping[str, Draw]) -> None:
    """A picture of panels by their titles, with one legend; an existing file is overwritten."""
    num_columns = min(len(panels), 2)
    num_rows = -(-len(panels) // num_columns)

    def draw(figure: "Figure") -> None:
        width, height = PANEL_INCHES
        figure.set_size_inches(max(width * num_columns, MIN_INCHES), height * num_rows)
        grid = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        legend: dict[str, Artist] = {}
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, draw_panel) in zip(grid, panels.items(), strict=False):
            axes.set_title(name)
            draw_panel(axes)
            axes.grid(axis="y", alpha=0.25)
            handles, labels = axes.get_legend_handles_labels()
            legend |= dict(zip(labels, handles, strict=True))
        if legend:
            handles, labels = list(legend.values()), list(legend)
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle(title, fontsize=11, fontweight="bold")

    write_picture(path, draw)


def write_bandwidth_plot(results: "Sequence[ProductResult]", machine: "Machine | GpuMachine", path: Path) -> None:
    """Bytes of weights a second against the number of tokens, beside the read bandwidth; a panel an implementation."""
    top = 1.1 * max(max(r.num_bytes / r.seconds_p10 / 1e9, r.read_bandwidth) for r in results)

    def draw(own: Sequence[ProductResult], axes: "Axes") -> None:
        widths = sorted({r.num_tokens for r in own})
        limit = [spread([r.read_bandwidth for r in own if r.num_tokens == width]).median for width in widths]
        axes.plot(widths, limit, color=GREY, ls="--", lw=1.2, label="read bandwidth")
        for kernel, rows in _by_kernel(own).items():
            colour, marker = STYLES[kernel]
            x, y = [r.num_tokens for r in rows], [r.gigabytes_per_second for r in rows]
            axes.plot(x, y, color=colour, marker=marker, ms=5, lw=1.4, label=kernel)
            slow, fast = ([r.num_bytes / getattr(r, key) / 1e9 for r in rows] for key in ("seconds_p90", "seconds_p10"))
            axes.fill_between(x, slow, fast, color=colour, alpha=0.12, lw=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.set(ylim=(0, top), xlabel="tokens a product", ylabel="GB/s of weights (band: 10th to 90th percentile)")

    _write_products(results, machine, path, "Weights read a second", draw)


def write_roofline(results: "Sequence[KernelResult]", machine: "Machine", path: Path) -> None:
    """Multiply-adds a second against multiply-adds a byte, under the roofs of bandwidth and of arithmetic."""
    low, high = 0.6 * min(map(_intensity, results)), 2.5 * max(map(_intensity, results))
    rates = [r.giga_multiply_adds_per_second for r in results]
    y_limits = 0.5 * min(rates), 1.9 * max(*rates, *(r.compute_peak for r in results))

    def draw(own: "Sequence[KernelResult]", axes: "Axes") -> None:
        bandwidth = spread([r.read_bandwidth for r in own]).median
        roofs = {form: [r.compute_peak for r in own if r.kernel in kernels] for form, kernels in PEAKS.items()}
        peaks = {form: spread(found).median for form, found in roofs.items() if found}
        slope = [low, max(peaks.values()) / bandwidth]
        axes.plot(slope, [bandwidth * x for x in slope], color=GREY, lw=1.2)
        label = partial(axes.annotate, textcoords="offset points", color=GREY, ha="right", fontsize=8)
        label(f"{bandwidth:.0f} GB/s", (1.5 * low, 1.5 * low * bandwidth), (-4, 3))
        for place, (form, peak) in enumerate(sorted(peaks.items(), key=lambda item: item[1])):
            axes.plot([peak / bandwidth, high], [peak, peak], color=GREY, lw=1.2, ls=":")
            label(f"{form} {peak:.0f}", (high, peak), (-4 - 62 * (place % 2), 3))  # peaks may be close
        for kernel, rows in _by_kernel(own).items():
            colour, marker = STYLES[kernel]
            x, y = [_intensity(r) for r in rows], [r.giga_multiply_adds_per_second for r in rows]
            axes.plot(x, y, color=colour, marker=marker, ms=5, lw=0.8, label=kernel)
        widths = ", ".join(str(width) for width in sorted({r.num_tokens for r in own}))
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=y_limits, ylabel="giga multiply-adds a second")
        axes.set_xlabel(f"multiply-adds a byte of weights (points: {widths} tokens)")
        for axis in (axes.xaxis, axes.yaxis):
            label_log_axis(axis)

    _write_products(results, machine, path, "Roofline", draw)


def _write_products(
    results: Sequence[AnyResult],
    machine: "Machine | GpuMachine",
    path: Path,
    title: str,
    draw: Callable[[Sequence[AnyResult], "Axes"], None],
) -> None:
    names = dict.fromkeys(r.implementation for r in results)
    panels = {name: partial(draw, [r for r in results if r.implementation == name]) for name in names}
    shape = f"{results[0].out_features} x {results[0].in_features}"
    _write_panels(path, f"{title}: {shape}, {machine.described}", panels)


def _by_kernel(results: Sequence[AnyResult]) -> dict[str, list[AnyResult]]:
    kernels = dict.fromkeys(r.kernel for r in results)
    return {k: sorted((r for r in results if r.kernel == k), key=lambda r: r.num_tokens) for k in kernels}


def _intensity(result: ProductResult) -> float:
    return result.num_tokens * result.out_features * result.in_features / result.num_bytes


def write_acceptance_by_prompt(results: "Sequence[DecodeResult]", machine: "Machine", path: Path) -> None:
    """A panel a strategy, a point a prompt and level; prompts in the order of the first strategy's acceptance."""
    first = next(result for result in results if len(result.levels) > 1)
    rates_of_first = first.acceptance_by_prompt[0]
    order = sorted(range(len(rates_of_first)), key=lambda prompt: -(rates_of_first[prompt] or 0.0))

    def draw(result: "DecodeResult", number: int, level: str, style: tuple[str, str], axes: "Axes") -> None:
        axes.set(xlim=(0.3, len(order) + 0.7), xlabel=f"prompt, by the acceptance of {first.strategy}")
        axes.set_ylabel("accepted / proposed (dashed: all prompts)")
        rates, mean = result.acceptance_by_prompt[number], result.acceptance_rates[number]
        if mean is None:
            return
        points = [(place, rate) for place, prompt in enumerate(order, 1) if (rate := rates[prompt]) is not None]
        (colour, marker), (x, y) = style, zip(*points, strict=True)
        axes.scatter(x, y, color=colour, marker=marker, s=18, label=level)
        axes.vlines(x, 0, y, color=colour, alpha=0.25, lw=1)
        axes.axhline(mean, color=colour, lw=1, ls="--")
        axes.annotate(f" {mean:.2f}", (1, mean), xycoords=("axes fraction", "data"), color=colour, va="center")

    _write_acceptance(results, draw, "prompt", machine, path)


def write_acceptance_by_position(results: "Sequence[DecodeResult]", machine: "Machine", path: Path) -> None:
    """A panel a strategy, a line a level: how often the token at each place of a proposal is accepted."""
    most = max(len(rates) for result in results for rates in result.acceptance_by_position or [[]])

    def draw(result: "DecodeResult", number: int, level: str, style: tuple[str, str], axes: "Axes") -> None:
        if rates := result.acceptance_by_position[number]:
            colour, marker = style
            axes.plot(range(1, len(rates) + 1), rates, color=colour, marker=marker, ms=4, lw=1.4, label=level)
        axes.set(xlim=(0.5, max(most, 1) + 0.5), xlabel="place in the proposal", ylabel="accepted / proposed there")

    _write_acceptance(results, draw, "position", machine, path)


def _write_acceptance(
    results: "Sequence[DecodeResult]",
    draw: "Callable[[DecodeResult, int, str, tuple[str, str], Axes], None]",
    by: str,
    machine: "Machine",
    path: Path,
) -> None:
    """A panel a strategy with drafts, whose levels are drawn one by one; a level has one colour and marker in all."""
    drafted = [result for result in results if len(result.levels) > 1]
    names = dict.fromkeys(level for result in drafted for level in result.levels[1:])
    styles = dict(zip(names, cycle(LEVEL_STYLES), strict=False))

    def draw_panel(result: "DecodeResult", axes: "Axes") -> None:
        for number, level in enumerate(result.levels[1:]):
            draw(result, number, level, styles[level], axes)
        axes.set_ylim(0, 1.03)
        axes.locator_params(axis="x", integer=True)

    first = drafted[0]
    prompts = f"{first.num_prompts} prompt{'' if first.num_prompts == 1 else 's'}, {first.num_tokens} tokens"
    title = f"Acceptance by {by}: {first.levels[0]} decodes {prompts}, {machine.described}"
    panels = {f"{each.strategy}: {each.speedup:.2f} x greedy": partial(draw_panel, each) for each in drafted}
    _write_panels(path, title, panels)
