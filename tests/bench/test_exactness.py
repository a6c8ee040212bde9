"""Nothing is timed that computes something else than its bytes mean."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.exactness import check_exactness, rounded  # noqa: E402
from mxconv.bench.operands import KERNELS, Operand, make_operand  # noqa: E402
from mxconv.errors import MxconvError  # noqa: E402

SHAPE = (50, 160)
TARGETS = ["bf16", "fp16", "bsfp-full"]


class Wrong:
    """A native matrix whose results somebody spoils."""

    def __init__(self, operand: Operand, spoil: Callable[[np.ndarray], None]) -> None:
        self._right = operand.copy()
        self._spoil = spoil

    def multiply(self, engine: Any, x: np.ndarray, out: np.ndarray) -> None:
        self._right.multiply(engine, x, out)
        self._spoil(out)

    def patterns(self, engine: Any, first_row: int, out: np.ndarray) -> None:
        self._right.patterns(engine, first_row, out)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((5, SHAPE[1])).astype(np.float32)


@pytest.fixture(params=_native.available())
def engine(request: pytest.FixtureRequest) -> Any:
    return _native.Engine(request.param, 2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(1, 1), SHAPE, (72, 416), (1100, 128)])
def test_every_kernel_of_every_implementation_passes(engine: Any, kernel: str, shape: tuple[int, int]) -> None:
    operand = make_operand(kernel, shape)
    x = np.random.default_rng(0).standard_normal((9, shape[1])).astype(np.float32)
    check_exactness(operand, operand.copy(), engine, x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_is_wrong_in_one_row_is_refused(engine: Any, kernel: str, x: np.ndarray) -> None:
    def spoil(out: np.ndarray) -> None:
        out[-1, 3] *= 1.01

    operand = make_operand(kernel, SHAPE)
    with pytest.raises(MxconvError, match=rf"kernel {kernel} \({engine.name}\): .* at token 4, row 3"):
        check_exactness(operand, Wrong(operand, spoil), engine, x)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_writes_nothing_is_refused(engine: Any, kernel: str, x: np.ndarray) -> None:
    def spoil(out: np.ndarray) -> None:
        out[:, -1] = np.nan

    operand = make_operand(kernel, SHAPE)
    with pytest.raises(MxconvError, match="row 49"):
        check_exactness(operand, Wrong(operand, spoil), engine, x)


@pytest.mark.parametrize("kernel", TARGETS)
def test_a_target_whose_bits_depend_on_the_width_is_refused(engine: Any, kernel: str, x: np.ndarray) -> None:
    def spoil(out: np.ndarray) -> None:
        if len(out) > 1:
            out[2, 7] = np.nextafter(out[2, 7], np.float32(np.inf))  # inside what float32 sums may lose

    operand = make_operand(kernel, SHAPE)
    with pytest.raises(MxconvError, match="token 2 has other bits alone than among 5"):
        check_exactness(operand, Wrong(operand, spoil), engine, x)


@pytest.mark.parametrize("kernel", TARGETS)
def test_a_target_that_rebuilds_other_weights_is_refused(engine: Any, kernel: str, x: np.ndarray) -> None:
    class Lossy(Wrong):
        def patterns(self, engine: Any, first_row: int, out: np.ndarray) -> None:
            super().patterns(engine, first_row, out)
            out[0, 0] ^= 1

    operand = make_operand(kernel, SHAPE)
    with pytest.raises(MxconvError, match="16-bit weights differ"):
        check_exactness(operand, Lossy(operand, lambda out: None), engine, x)


def test_activations_are_rounded_as_each_form_does(x: np.ndarray) -> None:
    assert np.array_equal(rounded("float", x), x.astype(np.float64))
    assert np.abs(rounded("bf16", x) - x).max() <= np.abs(x).max() * 2.0**-8
    assert not np.array_equal(rounded("bf16", x), x)
    assert np.abs(rounded("int8", x) - x).max() <= np.abs(x).max() / 127
    assert rounded("int8", x[:, :33]).shape == (5, 33)
