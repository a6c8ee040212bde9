"""Products: bytes as a package stores them, kernels that are checked before they are timed, and rows of the table."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.kernel_speed import KERNELS, check_exactness, make_operand, summarize  # noqa: E402
from mxconv.bench.operands import rounded  # noqa: E402
from mxconv.errors import MxconvError  # noqa: E402

SHAPE = (50, 160)
TARGETS = ["bf16", "fp16", "bsfp-full"]
OPERAND = make_operand("mxfp4-int8", (64, 256))  # 8704 bytes, 16384 weights
X = np.random.default_rng(3).standard_normal((5, SHAPE[1])).astype(np.float32)


@pytest.mark.parametrize(
    ("kernel", "bits"),
    [
        ("bf16", 16),
        ("fp16", 16),
        ("mxint8", 8.25),
        ("mxfp4-int8", 4.25),
        ("mxfp4-fp32", 4.25),
        ("bsfp-draft", 4.125),
    ],
)
def test_a_product_reads_the_bits_that_a_weight_takes(kernel: str, bits: float) -> None:
    assert make_operand(kernel, (64, 256)).num_bytes * 8 == bits * 64 * 256


def test_bsfp_as_a_target_reads_12_to_13_bits_a_weight() -> None:
    assert 12 < make_operand("bsfp-full", (1024, 1024)).num_bytes * 8 / 1024**2 < 13


@pytest.fixture(params=_native.available())
def engine(request: pytest.FixtureRequest) -> Any:
    return _native.Engine(request.param, 2)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_every_implementation_passes(engine: Any, kernel: str) -> None:
    for shape in ((1, 1), SHAPE, (72, 416)):
        operand = make_operand(kernel, shape)
        x = np.random.default_rng(0).standard_normal((9, shape[1])).astype(np.float32)
        check_exactness(operand, operand.copy(), engine, x)


def spoil_row(out: np.ndarray) -> None:
    out[-1, 3] *= 1.01


def leave_row(out: np.ndarray) -> None:
    out[:, -1] = np.nan


def spoil_bits(out: np.ndarray) -> None:
    if len(out) > 1:
        out[2, 7] = np.nextafter(out[2, 7], np.float32(np.inf))  # within what float32 sums may lose


def spoil_patterns(out: np.ndarray) -> None:
    if out.dtype == np.uint16:
        out[0, 0] ^= 1


@pytest.mark.parametrize(
    ("kernels", "spoil", "message"),
    [
        (KERNELS, spoil_row, r"kernel {kernel} \({engine}\): .* at token 4, row 3"),
        (KERNELS, leave_row, "row 49"),
        (TARGETS, spoil_bits, "token 2 has other bits alone than among 5"),
        (TARGETS, spoil_patterns, "16-bit weights differ"),
    ],
)
def test_a_kernel_that_computes_something_else_is_refused(
    engine: Any, kernels: list[str], spoil: Callable[[np.ndarray], None], message: str
) -> None:
    class Wrong:
        """A native matrix whose results somebody spoils."""

        def multiply(self, engine: Any, x: np.ndarray, out: np.ndarray) -> None:
            right.multiply(engine, x, out)
            spoil(out)

        def patterns(self, engine: Any, first_row: int, out: np.ndarray) -> None:
            right.patterns(engine, first_row, out)
            spoil(out) if spoil is spoil_patterns else None

    for kernel in kernels:
        operand = make_operand(kernel, SHAPE)
        right = operand.copy()
        with pytest.raises(MxconvError, match=message.format(kernel=kernel, engine=engine.name)):
            check_exactness(operand, Wrong(), engine, X)  # type: ignore[arg-type]


def test_activations_are_rounded_as_each_form_does() -> None:
    assert np.array_equal(rounded("float", X), X.astype(np.float64))
    assert 0 < np.abs(rounded("bf16", X) - X).max() <= np.abs(X).max() * 2.0**-8
    assert np.abs(rounded("int8", X) - X).max() <= np.abs(X).max() / 127
    assert rounded("int8", X[:, :33]).shape == (5, 33)


def test_figures_are_bytes_and_multiply_adds_over_the_median_of_seconds() -> None:
    result = summarize(OPERAND, "portable", 2, [(seconds, 50e9, 1e12) for seconds in (1e-6, 2e-6, 9e-6)])
    assert (result.kernel, result.implementation, result.num_tokens) == ("mxfp4-int8", "portable", 2)
    assert (result.out_features, result.in_features, result.num_bytes) == (64, 256, 8704)
    assert result.seconds_p10 < result.seconds == 2e-6 < result.seconds_p90
    assert result.gigabytes_per_second == pytest.approx(8704 / 2e-6 / 1e9)
    assert result.giga_multiply_adds_per_second == pytest.approx(2 * 16384 / 2e-6 / 1e9)
    assert (result.read_bandwidth, result.compute_peak) == (pytest.approx(50), pytest.approx(1000))


def test_fractions_compare_within_a_sample_so_that_a_machine_may_change_its_speed() -> None:
    """Half of bandwidth throughout, while bandwidth itself doubles now and then; then a bound that takes longer."""
    rates = (50e9, 100e9, 50e9, 100e9, 100e9)
    result = summarize(OPERAND, "portable", 1, [(2 * 8704 / rate, rate, 1e12) for rate in rates])
    assert result.fraction_of_bandwidth == pytest.approx(0.5) == result.fraction_of_roofline
    for bandwidth, peak, bound in ((1e9, 1e15, 8704 / 1e9), (1e12, 1e9, 8 * 16384 / 1e9)):  # memory, arithmetic
        assert summarize(OPERAND, "x", 8, [(4 * bound, bandwidth, peak)]).fraction_of_roofline == pytest.approx(0.25)
