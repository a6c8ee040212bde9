"""Charts of products and of decodes.

Source: bandwidth, roofline and the views of acceptance are those of ML-SpecQD (arXiv 2503.13565), Figs. 5 to 8.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from mxconv.bench.operands import ProductResult
from mxconv.bench.rates import spread
from mxconv.report.charts import Chart, Series, roofline

if TYPE_CHECKING:
    from mxconv.bench.decode_speed import DecodeResult
    from mxconv.bench.kernel_speed import KernelResult

AnyResult = TypeVar("AnyResult", bound=ProductResult)
PEAKS = {  # the kernels that share a peak
    "int8": ("bsfp-draft", "mxint8", "mxfp4-int8"),
    "bf16": ("bf16", "bsfp-full"),
    "fp32": ("fp16", "mxfp4-fp32"),
}


def bandwidth_charts(results: Sequence[ProductResult]) -> list[Chart]:
    """Bytes of weights a second against the number of tokens, beside the read bandwidth; a chart an implementation."""
    top = 1.1 * max(max(r.num_bytes / r.seconds_p10 / 1e9, r.read_bandwidth) for r in results)

    def chart(name: str, own: Sequence[ProductResult]) -> Chart:
        widths = sorted({r.num_tokens for r in own})
        limit = [spread([r.read_bandwidth for r in own if r.num_tokens == width]).median for width in widths]
        series = [Series("read bandwidth", list(zip(widths, limit, strict=True)), "limit")]
        for kernel, rows in _by_kernel(own).items():
            slow, fast = ([r.num_bytes / getattr(r, key) / 1e9 for r in rows] for key in ("seconds_p90", "seconds_p10"))
            rates = [(r.num_tokens, r.gigabytes_per_second) for r in rows]
            series.append(Series(kernel, rates, spread=(slow, fast)))
        y_label = "GB/s of weights (band: 10th to 90th percentile)"
        ticks = {width: str(width) for width in widths}
        return Chart(name, "tokens a product", y_label, series, "log", y_limits=(0, top), x_ticks=ticks)

    return [chart(name, own) for name, own in _by_implementation(results).items()]


def roofline_charts(results: "Sequence[KernelResult]") -> list[Chart]:
    """Multiply-adds a second against multiply-adds a byte, under the roofs of bandwidth and of arithmetic."""

    def chart(name: str, own: "Sequence[KernelResult]") -> Chart:
        roofs = {form: [r.compute_peak for r in own if r.kernel in kernels] for form, kernels in PEAKS.items()}
        peaks = {form: spread(found).median for form, found in roofs.items() if found}
        points = {
            kernel: [(_intensity(r), r.giga_multiply_adds_per_second) for r in rows]
            for kernel, rows in _by_kernel(own).items()
        }
        widths = ", ".join(str(width) for width in sorted({r.num_tokens for r in own}))
        x_label = f"multiply-adds a byte of weights (points: {widths} tokens)"
        return roofline(name, x_label, points, peaks, spread([r.read_bandwidth for r in own]).median)

    return [chart(name, own) for name, own in _by_implementation(results).items()]


def _by_implementation(results: Sequence[AnyResult]) -> dict[str, list[AnyResult]]:
    return {name: [r for r in results if r.implementation == name] for name in dict.fromkeys(
        r.implementation for r in results
    )}  # fmt: skip


def _by_kernel(results: Sequence[AnyResult]) -> dict[str, list[AnyResult]]:
    kernels = dict.fromkeys(r.kernel for r in results)
    return {k: sorted((r for r in results if r.kernel == k), key=lambda r: r.num_tokens) for k in kernels}


def _intensity(result: ProductResult) -> float:
    return result.num_tokens * result.out_features * result.in_features / result.num_bytes


def acceptance_by_prompt(results: "Sequence[DecodeResult]") -> list[Chart]:
    """A chart a strategy, a point a prompt and level; prompts in the order of the first strategy's acceptance."""
    drafted = [result for result in results if len(result.levels) > 1]
    rates_of_first = drafted[0].acceptance_by_prompt[0]
    order = sorted(range(len(rates_of_first)), key=lambda prompt: -(rates_of_first[prompt] or 0.0))
    charts = []
    for result in drafted:
        chart = _acceptance_chart(result, f"prompt, by the acceptance of {drafted[0].strategy}", len(order))
        chart.y_label = "accepted / proposed (dashed: all prompts)"
        columns = zip(result.levels[1:], result.acceptance_by_prompt, result.acceptance_rates, strict=True)
        for level, rates, mean in columns:
            if mean is not None:
                found = [(place, rate) for place, prompt in enumerate(order, 1) if (rate := rates[prompt]) is not None]
                chart.series.append(Series(level, found, "points"))
                chart.series.append(Series("", [(0.3, mean), (len(order) + 0.7, mean)], "limit"))
                chart.marks = [*chart.marks, (len(order) + 0.7, mean, f"{level} {mean:.2f}")]
        charts.append(chart)
    return charts


def acceptance_by_position(results: "Sequence[DecodeResult]") -> list[Chart]:
    """A chart a strategy, a line a level: how often the token at each place of a proposal is accepted."""
    drafted = [result for result in results if len(result.levels) > 1]
    most = max(len(rates) for result in drafted for rates in result.acceptance_by_position)
    charts = []
    for result in drafted:
        chart = _acceptance_chart(result, "place in the proposal", max(most, 1))
        chart.y_label = "accepted / proposed there"
        for level, rates in zip(result.levels[1:], result.acceptance_by_position, strict=True):
            if rates:
                chart.series.append(Series(level, list(enumerate(rates, 1))))
        charts.append(chart)
    return charts


def _acceptance_chart(result: "DecodeResult", x_label: str, num_places: int) -> Chart:
    step = -(-num_places // 10)
    return Chart(
        f"{result.strategy}: {result.speedup:.2f} x greedy",
        x_label,
        x_limits=(0.3, num_places + 0.7),
        y_limits=(0, 1.03),
        x_ticks={place: str(place) for place in range(1, num_places + 1, step)},
    )
