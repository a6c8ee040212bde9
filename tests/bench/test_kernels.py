"""From samples to a row of the table, and rows for everything that was asked for."""

from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench import kernels  # noqa: E402
from mxconv.bench.exactness import check_exactness  # noqa: E402
from mxconv.bench.kernel_result import Sample, summarize  # noqa: E402
from mxconv.bench.kernels import bench_kernels  # noqa: E402
from mxconv.bench.operands import Operand, make_operand  # noqa: E402
from mxconv.errors import MxconvError  # noqa: E402

OPERAND = make_operand("mxfp4-int8", (64, 256))  # 8704 bytes, 16384 weights


def test_figures_are_bytes_and_multiply_adds_over_the_median_of_seconds() -> None:
    samples = [Sample(seconds, bandwidth=50e9, peak=1e12) for seconds in (1e-6, 2e-6, 9e-6)]
    result = summarize(OPERAND, "portable", 2, samples)
    assert (result.kernel, result.implementation, result.num_tokens) == ("mxfp4-int8", "portable", 2)
    assert (result.out_features, result.in_features, result.num_bytes) == (64, 256, 8704)
    assert result.seconds == 2e-6
    assert result.seconds_p10 < 2e-6 < result.seconds_p90
    assert result.gigabytes_per_second == pytest.approx(8704 / 2e-6 / 1e9)
    assert result.giga_multiply_adds_per_second == pytest.approx(2 * 16384 / 2e-6 / 1e9)
    assert result.read_bandwidth == pytest.approx(50)
    assert result.compute_peak == pytest.approx(1000)


def test_fractions_compare_within_a_sample_so_that_a_machine_may_change_its_speed() -> None:
    """Half of bandwidth throughout, while bandwidth itself doubles now and then."""
    samples = [Sample(2 * 8704 / rate, rate, peak=1e12) for rate in (50e9, 100e9, 50e9, 100e9, 100e9)]
    result = summarize(OPERAND, "portable", 1, samples)
    assert result.fraction_of_bandwidth == pytest.approx(0.5)
    assert result.fraction_of_roofline == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("bandwidth", "peak", "bound"),
    [(1e9, 1e15, 8704 / 1e9), (1e12, 1e9, 8 * 16384 / 1e9)],  # memory bounds the first, arithmetic the second
)
def test_the_roofline_is_whichever_bound_takes_longer(bandwidth: float, peak: float, bound: float) -> None:
    result = summarize(OPERAND, "portable", 8, [Sample(4 * bound, bandwidth, peak)])
    assert result.fraction_of_roofline == pytest.approx(0.25)


def test_there_is_a_row_for_each_kernel_implementation_and_width() -> None:
    names = _native.available()
    rows = list(bench_kernels(["bf16", "bsfp-draft"], names, [1, 3], (64, 96), num_threads=2, num_samples=20))
    assert [(r.kernel, r.implementation, r.num_tokens) for r in rows] == [
        (kernel, name, width) for kernel in ("bf16", "bsfp-draft") for name in names for width in (1, 3)
    ]
    for row in rows:
        assert row.num_samples == 20
        assert row.seconds_p10 <= row.seconds <= row.seconds_p90
        assert min(row.read_bandwidth, row.compute_peak, row.fraction_of_bandwidth, row.fraction_of_roofline) > 0


def test_a_kernel_that_fails_the_check_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MxconvError("kernel bf16 (portable): wrong")

    def time(*_: object) -> None:
        pytest.fail("timed a wrong kernel")

    monkeypatch.setattr(kernels, "check_exactness", refuse)
    monkeypatch.setattr(kernels, "_measure", time)
    with pytest.raises(MxconvError, match="wrong"):
        list(bench_kernels(["bf16"], ["portable"], [1], (16, 32), num_threads=1, num_samples=20))


def test_every_kernel_and_width_is_checked_on_a_small_shape_and_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[tuple[int, int], int]] = []

    def record(operand: Operand, matrix: Any, engine: Any, x: np.ndarray) -> None:
        checked.append((operand.shape, len(x)))
        check_exactness(operand, matrix, engine, x)

    monkeypatch.setattr(kernels, "check_exactness", record)
    list(bench_kernels(["fp16"], ["portable"], [1, 2], (32, 64), num_threads=1, num_samples=20))
    assert checked == [(kernels.SMALL_SHAPE, 1), (kernels.SMALL_SHAPE, 2), ((32, 64), 1), ((32, 64), 2)]
