"""Whether a kernel computes what its bytes mean: asked before anything is timed."""

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64
from mxconv.bench.operands import Operand
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import MxconvError
from mxconv.kernels import _native

SAMPLED_TILES = 4


def check_exactness(operand: Operand, matrix: _native.Matrix, engine: _native.Engine, x: F32) -> None:
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
    rows = _sampled_rows(operand.shape[0])
    activations = rounded(operand.form, x)
    weights = operand.weights(rows)
    exact = activations @ weights.T
    magnitude = np.abs(activations) @ np.abs(weights).T
    bound = magnitude * (operand.shape[1] / 4 + 8) * np.finfo(np.float32).eps
    errors = np.abs(out[:, rows] - exact)
    if not (errors <= bound).all():
        token, index = np.argwhere(~(errors <= bound))[0]
        raise MxconvError(
            f"kernel {operand.kernel} ({engine.name}): {out[token, rows[index]]} at token {token}, row {rows[index]}; "
            f"{exact[token, index]} is required. It is not measured; please report this as a defect."
        )
    if operand.patterns is not None:
        _check_target(operand, matrix, engine, x, out)


def rounded(form: str, x: F32) -> F64:
    """Activations in the form that a kernel multiplies: bf16, float or int8."""
    if form == "bf16":
        return BF16.decode(BF16.encode(x)).astype(np.float64)
    if form == "int8":
        codes, scales = quantize_int8(x)
        values = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=1)
        return values[:, : x.shape[1]]
    return x.astype(np.float64)


def _check_target(operand: Operand, matrix: _native.Matrix, engine: _native.Engine, x: F32, out: F32) -> None:
    assert operand.patterns is not None
    rebuilt = np.empty((min(TILE_ROWS, operand.shape[0]), operand.shape[1]), np.uint16)
    matrix.patterns(engine, 0, rebuilt)
    if not np.array_equal(rebuilt, operand.patterns[: len(rebuilt)]):
        raise MxconvError(
            f"kernel {operand.kernel} ({engine.name}): 16-bit weights differ from the source's; the same bits are "
            "required. It is not measured; please report this as a defect."
        )
    alone = np.empty((1, operand.shape[0]), np.float32)
    for token in range(len(x)):
        matrix.multiply(engine, x[token : token + 1], alone)
        if not np.array_equal(alone.view(np.uint32), out[token : token + 1].view(np.uint32)):
            raise MxconvError(
                f"kernel {operand.kernel} ({engine.name}): token {token} has other bits alone than among {len(x)}; the "
                "same bits are required. It is not measured; please report this as a defect."
            )


def _sampled_rows(num_rows: int) -> NDArray[np.intp]:
    last = (num_rows - 1) // TILE_ROWS
    tiles = sorted({last * i // (SAMPLED_TILES - 1) for i in range(SAMPLED_TILES)})
    rows = np.concatenate([np.arange(tile * TILE_ROWS, (tile + 1) * TILE_ROWS) for tile in tiles])
    return rows[rows < num_rows].astype(np.intp)
