"""Kernel figures as pictures: bandwidth against tokens, and the roofline. PNG or SVG.

Source: the two views are those of ML-SpecQD (arXiv 2503.13565), Fig. 7 and Fig. 8.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mxconv.bench.kernel_result import KernelResult, ProductResult
from mxconv.bench.samples import spread
from mxconv.report.picture import BLUE, GREEN, GREY, ORANGE, SETTINGS, VERMILION, check_suffix, label_log_axis

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from mxconv.bench.gpu_clock import GpuMachine
    from mxconv.bench.machine import Machine

AnyResult = TypeVar("AnyResult", bound=ProductResult)
PURPLE, SKY, BROWN = "#CC79A7", "#56B4E9", "#8C6D31"
STYLES = {
    "bf16": (BLUE, "o"),
    "fp16": (SKY, "v"),
    "bsfp-full": (GREEN, "D"),
    "bsfp-draft": (VERMILION, "^"),
    "mxint8": (BROWN, "X"),
    "mxfp4-int8": (ORANGE, "s"),
    "mxfp4-fp32": (PURPLE, "P"),
    "mxfp4-bf16": (PURPLE, "P"),
}
PEAKS = {  # the kernels that share a peak
    "int8": ("bsfp-draft", "mxint8", "mxfp4-int8"),
    "bf16": ("bf16", "bsfp-full"),
    "fp32": ("fp16", "mxfp4-fp32"),
}
PANEL_INCHES = (5.6, 4.6)
MIN_INCHES = 8.8  # the legend's width
CLOSE = 1.4  # peaks whose labels would touch


def write_bandwidth_plot(results: Sequence[ProductResult], machine: "Machine | GpuMachine", path: Path) -> None:
    """Bytes of weights a second against the number of tokens, beside the read bandwidth; a panel an implementation."""
    top = 1.1 * max(max(r.num_bytes / r.seconds_p10 / 1e9, r.read_bandwidth) for r in results)
    _write(results, machine, path, "Weights read a second", lambda axes, own: _draw_bandwidth(axes, own, top))


def write_roofline(results: Sequence[KernelResult], machine: "Machine", path: Path) -> None:
    """Multiply-adds a second against multiply-adds a byte, under the roofs of bandwidth and of arithmetic."""
    intensities = [_intensity(r) for r in results]
    rates = [r.giga_multiply_adds_per_second for r in results]
    x_limits = min(intensities) / 1.6, max(intensities) * 2.5
    y_limits = 0.5 * min(rates), 1.9 * max(*rates, *(r.compute_peak for r in results))
    _write(results, machine, path, "Roofline", lambda axes, own: _draw_roofline(axes, own, x_limits, y_limits))


def _draw_bandwidth(axes: "Axes", own: Sequence[ProductResult], top: float) -> None:
    widths = sorted({r.num_tokens for r in own})
    limit = [spread([r.read_bandwidth for r in own if r.num_tokens == width]).median for width in widths]
    axes.plot(widths, limit, color=GREY, ls="--", lw=1.2, label="read bandwidth")
    for kernel, rows in _by_kernel(own).items():
        colour, marker = STYLES[kernel]
        x, y = [r.num_tokens for r in rows], [r.gigabytes_per_second for r in rows]
        axes.plot(x, y, color=colour, marker=marker, ms=5, lw=1.4, label=kernel)
        slow = [r.num_bytes / r.seconds_p90 / 1e9 for r in rows]
        fast = [r.num_bytes / r.seconds_p10 / 1e9 for r in rows]
        axes.fill_between(x, slow, fast, color=colour, alpha=0.12, lw=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.minorticks_off()
    axes.set_ylim(0, top)
    axes.set_xlabel("tokens a product")
    axes.set_ylabel("GB/s of weights (band: 10th to 90th percentile)")
    axes.grid(alpha=0.25)


def _draw_roofline(
    axes: "Axes", own: Sequence[KernelResult], x_limits: tuple[float, float], y_limits: tuple[float, float]
) -> None:
    low, high = x_limits
    bandwidth = spread([r.read_bandwidth for r in own]).median
    peaks = {
        form: spread(rates).median
        for form, kernels in PEAKS.items()
        if (rates := [r.compute_peak for r in own if r.kernel in kernels])
    }
    slope = [low, max(peaks.values()) / bandwidth]
    axes.plot(slope, [bandwidth * x for x in slope], color=GREY, lw=1.2)
    middle = (slope[0] * slope[0] * slope[1]) ** (1 / 3)
    label = f"{bandwidth:.0f} GB/s"
    axes.annotate(label, (middle, middle * bandwidth), (-4, 3), textcoords="offset points", color=GREY, ha="right")
    above, offset = 0.0, -4
    for form, peak in sorted(peaks.items(), key=lambda item: item[1]):
        axes.plot([peak / bandwidth, high], [peak, peak], color=GREY, lw=1.2, ls=":")
        offset = offset - 62 if peak < CLOSE * above else -4  # beside the label of a peak that is close
        text = f"{form} {peak:.0f}"
        axes.annotate(text, (high, peak), (offset, 3), textcoords="offset points", color=GREY, ha="right", fontsize=8)
        above = peak
    for kernel, rows in _by_kernel(own).items():
        colour, marker = STYLES[kernel]
        x, y = [_intensity(r) for r in rows], [r.giga_multiply_adds_per_second for r in rows]
        axes.plot(x, y, color=colour, marker=marker, ms=5, lw=0.8, label=kernel)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(*y_limits)
    for axis in (axes.xaxis, axes.yaxis):
        label_log_axis(axis)
    widths = ", ".join(str(width) for width in sorted({r.num_tokens for r in own}))
    axes.set_xlabel(f"multiply-adds a byte of weights (points: {widths} tokens)")
    axes.set_ylabel("giga multiply-adds a second")
    axes.grid(alpha=0.25)


def _write(
    results: Sequence[AnyResult],
    machine: "Machine | GpuMachine",
    path: Path,
    title: str,
    draw: Callable[["Axes", Sequence[AnyResult]], None],
) -> None:
    """A picture with a panel an implementation; an existing file is overwritten."""
    check_suffix(path)
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(r.implementation for r in results))
    width, height = PANEL_INCHES
    with matplotlib.rc_context(SETTINGS):
        num_columns = min(len(names), 2)
        num_rows = -(-len(names) // num_columns)
        figure = Figure(figsize=(max(width * num_columns, MIN_INCHES), height * num_rows), layout="constrained")
        FigureCanvasAgg(figure)
        handles: dict[str, Artist] = {}
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for unused in panels[len(names) :]:
            unused.set_axis_off()
        for axes, name in zip(panels, names, strict=False):
            axes.set_title(name)
            draw(axes, [r for r in results if r.implementation == name])
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), frameon=False
        )
        shape = f"{results[0].out_features} x {results[0].in_features}"
        figure.suptitle(f"{title}: {shape}, {machine.described}", fontsize=11, fontweight="bold")
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, format=path.suffix.lower()[1:], metadata={"Date": None} if is_svg else None)


def _by_kernel(results: Sequence[AnyResult]) -> dict[str, list[AnyResult]]:
    kernels = dict.fromkeys(r.kernel for r in results)
    return {k: sorted((r for r in results if r.kernel == k), key=lambda r: r.num_tokens) for k in kernels}


def _intensity(result: KernelResult) -> float:
    return result.num_tokens * result.out_features * result.in_features / result.num_bytes
