"""Matrices to measure with, the weights that their bytes mean, and checks of products against these weights.

Encoding 8192 x 8192 weights with NumPy takes minutes, and a kernel's time does not depend on their values. So 1024 rows
are encoded, and their bytes are repeated until the matrix is full; lists of escapes go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U8, U16
from mxconv.bench.rates import ReadTiming, read_timing
from mxconv.codecs import vnni8
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import PackedBsfp, encode_bsfp
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8, quantize_mxint8
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import MxconvError

Matrix = TypeVar("Matrix")
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
        patterns: the same as 16-bit patterns; None for a draft.
        arrays: all that one product reads, as stored; empty on a GPU.
    """

    kernel: str
    form: str
    shape: tuple[int, int]
    num_bytes: int
    slab: F32
    copy: Callable[[], Matrix]
    patterns: U16 | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def weights(self, rows: NDArray[np.intp]) -> F64:
        """(len(rows), in_features) weights of some rows."""
        return self.slab[rows % len(self.slab)].astype(np.float64)


def gaussian_slab(shape: tuple[int, int], seed: int = 0) -> F32:
    """(slab rows, in_features) Gaussian weights, the same for the same shape and seed."""
    size = (min(shape[0], SLAB_ROWS), shape[1])
    return np.random.default_rng(seed).standard_normal(size, np.float32) * np.float32(SIGMA)


@dataclass(frozen=True)
class MxSlab:
    """Rows in MXFP4 or MXINT8."""

    codes: U8  # (T, C, 64) as stored; of MXINT8 (T, 2 C, 64) elements
    scales: U8  # (T, blocks, 16)
    weights: F32  # (rows, in_features) that they mean


def mxfp4_slab(values: F32) -> MxSlab:
    """Encode (rows, in_features) weights in MXFP4."""
    codes, scales = (vnni8.pad(each, TILE_ROWS, 1) for each in quantize_mxfp4(values))
    packed, packed_scales = vnni8.pack_nibbles(codes), vnni8.pack_scales(scales)
    weights = dequantize_mxfp4(vnni8.unpack_nibbles(packed), vnni8.unpack_scales(packed_scales))
    return MxSlab(packed, packed_scales, weights[: len(values), : values.shape[1]])


def mxint8_slab(values: F32) -> MxSlab:
    """Encode (rows, in_features) weights in MXINT8."""
    elements, scales = quantize_mxint8(values)
    packed = vnni8.pack_quads(vnni8.pad(elements.view(np.uint8), TILE_ROWS, 1))
    weights = dequantize_mxint8(elements, scales)[:, : values.shape[1]]
    return MxSlab(packed, vnni8.pack_scales(vnni8.pad(scales, TILE_ROWS, 1)), weights)


@dataclass(frozen=True)
class BsfpSlab:
    """Rows of BF16 in BSFP."""

    patterns: U16  # (rows, in_features) the weights
    packed: PackedBsfp
    table: SegmentTable


def bsfp_slab(values: F32) -> BsfpSlab:
    """Encode (rows, in_features) weights, rounded to BF16, in the table that fits them."""
    patterns = BF16.encode(values)
    histogram = PatternHistogram(BF16)
    histogram.add(patterns)
    table = fit_table(histogram).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, BF16) if table.has_row_shifts else None)
    return BsfpSlab(patterns, packed, table)


def repeat_bsfp(packed: PackedBsfp, num_rows: int) -> PackedBsfp:
    """A matrix of `num_rows` rows: those of the slab, again and again."""
    counts = repeat(packed.escape_counts, num_rows)
    num_escapes = int(counts.sum(dtype=np.int64))  # whole slabs follow one another, so their lists do
    shifts = packed.row_shifts
    return PackedBsfp(
        codes=repeat(packed.codes, num_rows),
        residual_low=repeat(packed.residual_low, num_rows),
        residual_high=repeat(packed.residual_high, num_rows),
        scales=repeat(packed.scales, num_rows),
        row_shifts=None if shifts is None else repeat_rows(shifts, vnni8.padded(num_rows, TILE_ROWS)),
        escape_counts=counts,
        escape_positions=np.resize(packed.escape_positions, num_escapes),
        escape_high=np.resize(packed.escape_high, num_escapes),
    )


def repeat(tiles: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """The row tiles of a slab (first axis), again and again, for `num_rows` rows."""
    return repeat_rows(tiles, vnni8.padded(num_rows, TILE_ROWS) // TILE_ROWS)


def repeat_rows(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """The first `count` of some rows, which repeat."""
    repeated: NDArray[Any] = rows[np.arange(count) % len(rows)]
    return repeated


def sampled_rows(num_rows: int) -> NDArray[np.intp]:
    """The rows of some row tiles, the first and the last among them."""
    last = (num_rows - 1) // TILE_ROWS
    tiles = sorted({last * i // (SAMPLED_TILES - 1) for i in range(SAMPLED_TILES)})
    rows = np.concatenate([np.arange(tile * TILE_ROWS, (tile + 1) * TILE_ROWS) for tile in tiles])
    return rows[rows < num_rows].astype(np.intp)


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
    """Compare some rows of a product, of the first and the last tile among others, with float64 arithmetic.

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
    rows, activations = sampled_rows(operand.shape[0]), rounded(form, x)
    weights = operand.weights(rows)
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
