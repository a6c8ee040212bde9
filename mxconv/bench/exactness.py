"""Whether a kernel computes what its bytes mean: asked before anything is timed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import MxconvError

if TYPE_CHECKING:  # what checks another machine's kernels needs no native ones
    from mxconv.bench.operands import Operand
    from mxconv.kernels import _native

SAMPLED_TILES = 4


def check_exactness(operand: "Operand", matrix: "_native.Matrix", engine: "_native.Engine", x: F32) -> None:
    """Compare a native product with float64 arithmetic on the weights that NumPy decodes.

    Some row tiles are compared, the first and the last among them. Each result may differ by what float32 sums can
    lose, and no more; 16-bit patterns must come back bit for bit, and a row of a target must have the same bits alone
    as among others.

    Args:
        operand: what the matrix was made of.
        matrix: a native matrix over its arrays.
        engine: the implementation.
        x: (num_tokens, in_features).

    Raises:
        MxconvError: a result is wrong.
    """
    out = np.full((len(x), operand.shape[0]), np.nan, np.float32)
    matrix.multiply(engine, x, out)
    rows = sampled_rows(operand.shape[0])
    check_values(f"{operand.kernel} ({engine.name})", out, rounded(operand.form, x), operand.weights(rows), rows)
    if operand.patterns is not None:
        _check_target(operand, matrix, engine, x, out)


def check_values(
    kernel: str, out: F32, activations: F64, weights: F64, rows: NDArray[np.intp], rounding: float = 0.0
) -> None:
    """Compare some rows of a product with float64 arithmetic.

    Args:
        kernel: what messages call it.
        out: (num_tokens, out_features).
        activations: (num_tokens, in_features) as the kernel rounds them.
        weights: (len(rows), in_features) of these rows.
        rows: which.
        rounding: by how much a result may differ beyond sums in float32, as a share of the sum of all magnitudes.

    Raises:
        MxconvError: a result is wrong.
    """
    exact = activations @ weights.T
    magnitude = np.abs(activations) @ np.abs(weights).T
    bound = magnitude * ((weights.shape[1] / 4 + 8) * np.finfo(np.float32).eps + rounding)
    wrong = ~(np.abs(out[:, rows] - exact) <= bound)
    if wrong.any():
        token, index = np.argwhere(wrong)[0]
        raise MxconvError(
            f"kernel {kernel}: {out[token, rows[index]]} at token {token}, row {rows[index]}; "
            f"{exact[token, index]} is required. It is not measured; please report this as a defect."
        )


def check_alone(kernel: str, out: F32, alone: Callable[[int], F32]) -> None:
    """Compare each token's results with those that it has alone, bit for bit.

    Args:
        kernel: what messages call it.
        out: (num_tokens, out_features).
        alone: (out_features,) of the token of a number, multiplied by itself.

    Raises:
        MxconvError: a token has other bits.
    """
    for token in range(len(out)):
        if not np.array_equal(alone(token).view(np.uint32), out[token].view(np.uint32)):
            raise MxconvError(
                f"kernel {kernel}: token {token} has other bits alone than among {len(out)}; the same bits are "
                "required. It is not measured; please report this as a defect."
            )


def rounded(form: str, x: F32) -> F64:
    """Activations in the form that a kernel multiplies: bf16, float or int8."""
    if form == "bf16":
        return BF16.decode(BF16.encode(x)).astype(np.float64)
    if form == "int8":
        codes, scales = quantize_int8(x)
        values = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=1)
        return values[:, : x.shape[1]]
    return x.astype(np.float64)


def _check_target(operand: "Operand", matrix: "_native.Matrix", engine: "_native.Engine", x: F32, out: F32) -> None:
    assert operand.patterns is not None
    rebuilt = np.empty((min(TILE_ROWS, operand.shape[0]), operand.shape[1]), np.uint16)
    matrix.patterns(engine, 0, rebuilt)
    if not np.array_equal(rebuilt, operand.patterns[: len(rebuilt)]):
        raise MxconvError(
            f"kernel {operand.kernel} ({engine.name}): 16-bit weights differ from the source's; the same bits are "
            "required. It is not measured; please report this as a defect."
        )

    def alone(token: int) -> F32:
        found = np.empty((1, operand.shape[0]), np.float32)
        matrix.multiply(engine, x[token : token + 1], found)
        return found.reshape(-1)

    check_alone(f"{operand.kernel} ({engine.name})", out, alone)


def sampled_rows(num_rows: int) -> NDArray[np.intp]:
    """The rows of some row tiles, the first and the last among them."""
    last = (num_rows - 1) // TILE_ROWS
    tiles = sorted({last * i // (SAMPLED_TILES - 1) for i in range(SAMPLED_TILES)})
    rows = np.concatenate([np.arange(tile * TILE_ROWS, (tile + 1) * TILE_ROWS) for tile in tiles])
    return rows[rows < num_rows].astype(np.intp)
