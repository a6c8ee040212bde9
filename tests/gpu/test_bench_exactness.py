"""Nothing is timed on a GPU that computes something else than its bytes mean."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE

from mxconv.bench.gpu_kernel_speed import (
    KERNELS,
    GpuOperand,
    GpuOperands,
    Product,
    _activations,
    check_gpu_exactness,
    check_gpu_weights,
)
from mxconv.bench.operands import SLAB_ROWS
from mxconv.errors import MxconvError

SHAPE = (50, 160)
OURS = [kernel for kernel in KERNELS if kernel != "bf16"]


class Wrong:
    """A matrix whose results somebody spoils."""

    def __init__(
        self,
        operand: GpuOperand,
        product: Callable[[torch.Tensor], None] = lambda _: None,
        weights: Callable[[torch.Tensor], None] = lambda _: None,
    ) -> None:
        self._right: Product = operand.copy()
        self._product, self._weights = product, weights

    def product(self, x: torch.Tensor) -> torch.Tensor:
        out = self._right.product(x)
        self._product(out)
        return out

    def rebuild(self) -> torch.Tensor:
        weights = self._right.rebuild().clone()
        self._weights(weights)
        return weights


@pytest.fixture(scope="module")
def operands() -> GpuOperands:
    return GpuOperands(SHAPE, DEVICE)


@pytest.mark.parametrize("kernel", [*OURS, "bf16"])
def test_every_kernel_passes_and_one_that_is_wrong_in_one_row_is_refused(operands: GpuOperands, kernel: str) -> None:
    operand, x = operands.make(kernel), _activations(3, SHAPE[1], DEVICE)
    check_gpu_weights(operand, operand.copy())
    check_gpu_exactness(operand, operand.copy(), x)

    def spoil(out: torch.Tensor) -> None:
        out[2, 49] += 0.5

    implementation = "torch" if kernel == "bf16" else "triton"
    with pytest.raises(MxconvError, match=rf"kernel {kernel} \({implementation}\): .* at token 2, row 49; .* required"):
        check_gpu_exactness(operand, Wrong(operand, product=spoil), x)


@pytest.mark.parametrize("kernel", OURS)
def test_more_than_16_tokens_are_torchs_and_pass(operands: GpuOperands, kernel: str) -> None:
    operand = operands.make(kernel)
    check_gpu_exactness(operand, operand.copy(), _activations(17, SHAPE[1], DEVICE))


def test_bits_that_depend_on_the_width_are_refused_of_our_kernels_alone(operands: GpuOperands) -> None:
    def spoil(out: torch.Tensor) -> None:
        if len(out) > 1:
            out[1, 7] = torch.nextafter(out[1, 7].float(), torch.tensor(torch.inf, device=out.device)).to(out.dtype)

    operand, x = operands.make("mxfp4-bf16"), _activations(2, SHAPE[1], DEVICE)
    with pytest.raises(MxconvError, match=r"mxfp4-bf16 \(triton\): token 1 has other bits alone than among 2"):
        check_gpu_exactness(operand, Wrong(operand, product=spoil), x)
    library = operands.make("bf16")
    check_gpu_exactness(library, Wrong(library, product=spoil), x)


@pytest.mark.parametrize("kernel", [*OURS, "bf16"])
def test_other_weights_are_refused(operands: GpuOperands, kernel: str) -> None:
    def spoil(weights: torch.Tensor) -> None:
        weights[31, 5] += 1

    operand = operands.make(kernel)
    with pytest.raises(MxconvError, match=rf"kernel {kernel} .*: weight .* at row 31, column 5; .* is required"):
        check_gpu_weights(operand, Wrong(operand, weights=spoil))


@pytest.mark.parametrize("kernel", ["bf16", "bsfp-full", "mxfp4-bf16"])
def test_rows_behind_the_slab_repeat_it(kernel: str) -> None:
    shape = (SLAB_ROWS + 40, 32)
    operand = GpuOperands(shape, DEVICE).make(kernel)
    rebuilt = operand.copy().rebuild().float().cpu().numpy()
    assert np.array_equal(rebuilt[SLAB_ROWS:], rebuilt[:40])
    assert np.array_equal(operand.weights(np.array([SLAB_ROWS + 17])), rebuilt[17:18])
