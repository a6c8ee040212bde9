"""Whether a product on a device is what its bytes mean: asked before anything is timed."""

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.bench.exactness import check_alone, check_values, rounded, sampled_rows
from mxconv.bench.gpu.operands import GpuOperand, Product
from mxconv.errors import MxconvError

MAX_TOKENS = 16  # of our kernels; beyond, rows are rebuilt and torch multiplies
ROUNDING = 2.0**-8  # of torch's BF16 products: of results, and of partial sums where it splits columns


def check_gpu_exactness(operand: GpuOperand, matrix: Product, x: torch.Tensor) -> None:
    """Compare a product with float64 arithmetic on the weights that NumPy decodes, and all its weights with these.

    A token of our kernels must also have the same bits alone as among others, up to 16.

    Args:
        operand: what the matrix was made of.
        matrix: on the device.
        x: (num_tokens, in_features) BF16, there too.

    Raises:
        MxconvError: a result or a weight is wrong.
    """
    name = f"{operand.kernel} ({operand.implementation})"
    _check_weights(name, operand, matrix)
    is_own = operand.implementation == "triton" and len(x) <= MAX_TOKENS
    out = _on_host(matrix.product(x))
    rows = sampled_rows(operand.shape[0])
    activations = rounded("int8" if operand.is_int8 and is_own else "bf16", _on_host(x))
    check_values(name, out, activations, operand.weights(rows), rows, 0 if is_own else ROUNDING)
    if is_own:
        check_alone(name, out, lambda token: _on_host(matrix.product(x[token : token + 1])).reshape(-1))


def _check_weights(name: str, operand: GpuOperand, matrix: Product) -> None:
    rebuilt, slab = matrix.rebuild(), operand.slab
    for first in range(0, operand.shape[0], len(slab)):
        found = _on_host(rebuilt[first : first + len(slab)])
        if not np.array_equal(found, slab[: len(found)]):
            row = first + int(np.argwhere(found != slab[: len(found)])[0, 0])
            raise MxconvError(
                f"kernel {name}: weights of row {row} differ from those that NumPy decodes; the same are required. It "
                "is not measured; please report this as a defect."
            )


def _on_host(tensor: torch.Tensor) -> F32:
    found: F32 = tensor.float().cpu().numpy()
    return found
