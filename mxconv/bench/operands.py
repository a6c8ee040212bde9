"""Matrices to measure with, the weights that their bytes mean, and checks of products against these weights.

A kernel's time does not depend on the values, so 1024 rows of random weights are repeated until the matrix is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U16
from mxconv.bench.rates import ReadTiming, read_timing
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import decode_bsfp_draft, escape_offsets
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.mxint8 import quantize_mxint8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_quads, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.errors import MxconvError
from mxconv.kernels.encoders import add_to_histogram, encode_bsfp, encode_mxfp4, fit_table, row_shifts_of
from mxconv.package.stored import StoredBsfp, StoredMxfp4, StoredMxint8

Matrix = TypeVar("Matrix")
Stored = U16 | StoredMxfp4 | StoredMxint8 | StoredBsfp
SMALL_SHAPE = (72, 416)  # partial tiles of rows, partial groups of columns
SLAB_ROWS = 1024
SIGMA = 0.02  # of the weights, as in linear layers of language models
SAMPLED_TILES = 4


@dataclass(frozen=True)
class Operand(Generic[Matrix]):
    """A kernel's matrix.

    Args:
        kernel: its name.
        form: of the activations that it multiplies: bf16 (rounded), float, or int8 (blocks of 32).
        shape: (out_features, in_features).
        num_bytes: of the matrix, which one product reads.
        slab: (slab rows, in_features) weights of the first rows, decoded by NumPy; row r of the matrix is row r modulo
            slab rows.
        copy: makes the matrix anew, in memory of its own.
        patterns: the slab as 16-bit patterns; None for a draft.
    """

    kernel: str
    form: str
    shape: tuple[int, int]
    num_bytes: int
    slab: F32
    copy: Callable[[], Matrix]
    patterns: U16 | None = None

    def weights(self, rows: NDArray[np.intp]) -> F64:
        """(len(rows), in_features) weights of some rows."""
        return self.slab[rows % len(self.slab)].astype(np.float64)


def gaussian_patterns(shape: tuple[int, int], float_format: FloatFormat = BF16) -> U16:
    """(rows, columns) Gaussian weights as 16-bit patterns, the same for the same shape; rows repeat."""
    size = (min(shape[0], SLAB_ROWS), shape[1])
    slab = np.random.default_rng(0).standard_normal(size, np.float32) * np.float32(SIGMA)
    return np.resize(float_format.encode(slab), shape)


def stored_mxfp4(patterns: U16) -> StoredMxfp4:
    """Encode BF16 weights in MXFP4."""
    return StoredMxfp4(patterns.shape, *encode_mxfp4(patterns, BF16))


def stored_bsfp(patterns: U16) -> StoredBsfp:
    """Encode BF16 weights in BSFP, in the table that fits them."""
    histogram = PatternHistogram(BF16)
    add_to_histogram(histogram, patterns)
    table = fit_table(histogram).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, BF16) if table.has_row_shifts else None)
    return StoredBsfp(patterns.shape, table, packed, escape_offsets(packed), 1.0)


def encoded(kernel: str, shape: tuple[int, int]) -> tuple[Stored, F32]:
    """Random weights as a kernel reads them, and the values of the slab, decoded by NumPy."""
    float_format = FP16 if kernel == "fp16" else BF16
    patterns = gaussian_patterns(shape, float_format)
    num_rows, num_columns = min(shape[0], SLAB_ROWS), shape[1]
    num_tiles = -(-num_rows // TILE_ROWS)
    if kernel in ("bf16", "fp16"):
        return patterns, float_format.decode(patterns[:num_rows])
    if kernel == "mxint8":
        elements, scales = quantize_mxint8(BF16.decode(patterns))
        parts = pack_quads(pad(elements, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
        mxint8 = StoredMxint8(shape, *parts)
        return mxint8, BF16.decode(mxint8.patterns(0, num_rows))
    if kernel.startswith("mxfp4"):
        mxfp4 = stored_mxfp4(patterns)
        values = dequantize_mxfp4(unpack_nibbles(mxfp4.codes[:num_tiles]), unpack_scales(mxfp4.scales[:num_tiles]))
        return mxfp4, values[:num_rows, :num_columns]
    bsfp = stored_bsfp(patterns)
    if kernel == "bsfp-full":
        return bsfp, BF16.decode(bsfp.target_rows(0, num_rows))
    return bsfp, decode_bsfp_draft(bsfp.row_tiles(0, num_tiles), bsfp.table, (num_rows, num_columns))


def rounded(form: str, x: F32) -> F64:
    """Activations in the form that a kernel multiplies: bf16, float or int8."""
    if form == "bf16":
        return BF16.decode(BF16.encode(x)).astype(np.float64)
    if form == "int8":
        codes, scales = quantize_int8(x)
        values = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=1)
        return values[:, : x.shape[1]]
    return x.astype(np.float64)


def check_product(name: str, operand: Operand[Any], form: str, x: F32, out: F32, rounding: float = 0.0) -> None:
    """Compare the rows of some tiles of a product, the first and the last among them, with float64 arithmetic.

    A result may differ by what float32 sums can lose, and by `rounding` as a share of the sum of all magnitudes.

    Args:
        name: of the kernel, for messages.
        operand: the matrix.
        form: in which the kernel multiplies activations.
        x: (num_tokens, in_features).
        out: (num_tokens, out_features).
        rounding: of results, beyond that of float32.

    Raises:
        MxconvError: a result is wrong.
    """
    last = (operand.shape[0] - 1) // TILE_ROWS
    tiles = np.unique(np.linspace(0, last, SAMPLED_TILES).astype(np.intp))
    rows = (tiles[:, None] * TILE_ROWS + np.arange(TILE_ROWS)).ravel()
    rows = rows[rows < operand.shape[0]]
    activations, weights = rounded(form, x), operand.weights(rows)
    exact = activations @ weights.T
    magnitude = np.abs(activations) @ np.abs(weights).T
    bound = magnitude * ((weights.shape[1] / 4 + 8) * np.finfo(np.float32).eps + rounding)
    wrong = ~(np.abs(out[:, rows] - exact) <= bound)
    if wrong.any():
        token, index = np.argwhere(wrong)[0]
        raise unfit(
            f"{name}: {out[token, rows[index]]} at token {token}, row {rows[index]}; {exact[token, index]} is required"
        )


def check_alone(name: str, out: F32, alone: Callable[[slice], F32]) -> None:
    """Compare each token's results with those that it has alone, bit for bit.

    Args:
        name: of the kernel, for messages.
        out: (num_tokens, out_features).
        alone: (1, out_features) results of the tokens of a slice, multiplied by itself.

    Raises:
        MxconvError: a token has other bits.
    """
    for token in range(len(out)):
        if not np.array_equal(alone(slice(token, token + 1))[0].view(np.uint32), out[token].view(np.uint32)):
            raise unfit(f"{name}: token {token} has other bits alone than among {len(out)}; the same bits are required")


def unfit(found: str) -> MxconvError:
    """The error of a kernel that computes something else than its bytes mean."""
    return MxconvError(f"kernel {found}. It is not measured; please report this as a defect.")


@dataclass(frozen=True, kw_only=True)
class ProductResult(ReadTiming):
    """Figures of the products of one matrix by one kernel."""

    kernel: str
    implementation: str
    out_features: int
    in_features: int
    num_tokens: int
    giga_multiply_adds_per_second: float


def product_members(
    operand: Operand[Any], implementation: str, num_tokens: int, samples: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """The members of a `ProductResult`, of seconds and the bytes a second that were read beside them."""
    rows, columns = operand.shape
    timing = read_timing(operand.num_bytes, samples)
    return vars(timing) | {
        "kernel": operand.kernel,
        "implementation": implementation,
        "out_features": rows,
        "in_features": columns,
        "num_tokens": num_tokens,
        "giga_multiply_adds_per_second": num_tokens * rows * columns / timing.seconds / 1e9,
    }
