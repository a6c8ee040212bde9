"""Whether a product on a device is what its bytes mean: asked before anything is timed."""

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.bench.exactness import check_alone, check_values, rounded, sampled_rows
from mxconv.bench.gpu.operands import GpuOperand, Product
from mxconv.errors import MxconvError
from mxconv.kernels.triton.launch import MAX_TOKENS

ROUNDING = 2.0**-8  # of torch's BF16 products: of results, and of partial sums where it splits columns


def check_gpu_exactness(operand: GpuOperand, matrix: Product, x: torch.Tensor) -> None:
    """Compare a product with float64 arithmetic on the weights that NumPy decodes.

    A token of our kernels must also have the same bits alone as among others, up to 16.

    Args:
        operand: what the matrix was made of.
        matrix: on the device.
        x: (num_tokens, in_features) BF16, there too.

    Raises:
        MxconvError: a result is wrong.
    """
    name = _name(operand)
    is_own = operand.implementation == "triton" and len(x) <= MAX_TOKENS.value  # beyond, torch multiplies
    out = _on_host(matrix.product(x))
    rows = sampled_rows(operand.shape[0])
    activations = rounded("int8" if operand.is_int8 and is_own else "bf16", _on_host(x))
    check_values(name, out, activations, operand.weights(rows), rows, 0 if is_own else ROUNDING)
    if is_own:
        check_alone(name, out, lambda token: _on_host(matrix.product(x[token : token + 1])).reshape(-1))


def check_gpu_weights(operand: GpuOperand, matrix: Product) -> None:
    """Compare all weights with those that NumPy decodes.

    Raises:
        MxconvError: one differs.
    """
    rebuilt, slab = matrix.rebuild(), operand.slab
    for first in range(0, operand.shape[0], len(slab)):
        found = _on_host(rebuilt[first : first + len(slab)])
        expected = slab[: len(found)]
        if not np.array_equal(found, expected):
            row, column = np.argwhere(found != expected)[0]
            raise MxconvError(
                f"kernel {_name(operand)}: weight {found[row, column]} at row {first + row}, column {column}; "
                f"{expected[row, column]} is required. It is not measured; please report this as a defect."
            )


def _name(operand: GpuOperand) -> str:
    return f"{operand.kernel} ({operand.implementation})"


def _on_host(tensor: torch.Tensor) -> F32:
    found: F32 = tensor.float().cpu().numpy()
    return found
