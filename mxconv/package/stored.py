"""A quantized matrix in a package: the arrays that it is stored as, and its values read from them.

Names, dtypes and shapes of arrays are known before they are computed; writer and reader both use this module, and
`formats/mxfp4.md`, `mxint8.md` and `bsfp.md` specify the arrays. `draft_rows` has the values that stand in a draft for
a matrix, or for one expert of a stack; its `start` is a multiple of 16.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arrays import F32, I8, I64, U8, U16
from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.checkpoint.stacked import CarriedTensor
from mxconv.codecs.bsfp.draft import COLUMN_MULTIPLE, GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.mxint8 import mxint8_patterns
from mxconv.codecs.vnni8 import QUAD, TILE_COLUMNS, TILE_ELEMENTS, TILE_ROWS, padded, unpack_quads, unpack_scales
from mxconv.errors import PackageError
from mxconv.package.manifest import TensorRecord

if TYPE_CHECKING:
    from mxconv.codecs.bsfp.packing import PackedBsfp


@dataclass(frozen=True)
class StoredArray:
    """One tensor of a package's safetensors files."""

    name: str  # "<tensor>.<part>", or the tensor's own name where it is kept
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].num_bits // 8


def mxfp4_arrays(name: str, shape: tuple[int, int]) -> tuple[StoredArray, ...]:
    """The arrays of an MXFP4 matrix of (out_features, in_features)."""
    rows, columns = padded(shape[0], TILE_ROWS), padded(shape[1], BLOCK)
    row_tiles = rows // TILE_ROWS
    return (
        StoredArray(f"{name}.codes", "U8", (row_tiles, columns // TILE_COLUMNS, TILE_ELEMENTS // 2)),
        StoredArray(f"{name}.scales", "U8", (row_tiles, columns // BLOCK, TILE_ROWS)),
    )


def mxint8_arrays(name: str, shape: tuple[int, int]) -> tuple[StoredArray, ...]:
    """The arrays of an MXINT8 matrix of (out_features, in_features)."""
    rows, columns = padded(shape[0], TILE_ROWS), padded(shape[1], BLOCK)
    row_tiles = rows // TILE_ROWS
    return (
        StoredArray(f"{name}.elements", "I8", (row_tiles, columns // QUAD, TILE_ROWS * QUAD)),
        StoredArray(f"{name}.scales", "U8", (row_tiles, columns // BLOCK, TILE_ROWS)),
    )


def carried_array(carried: CarriedTensor) -> StoredArray:
    """The array that holds one tensor of a source's own MXFP4."""
    codes, scales = mxfp4_arrays(carried.of, carried.stack.stored_shape)
    return codes if carried.part == "codes" else scales


def bsfp_arrays(
    name: str, shape: tuple[int, int], residual_bits: int, has_row_shifts: bool, num_escapes: int
) -> tuple[StoredArray, ...]:
    """The arrays of a BSFP matrix of (out_features, in_features)."""
    rows, columns = padded(shape[0], TILE_ROWS), padded(shape[1], COLUMN_MULTIPLE)
    row_tiles, column_tiles = rows // TILE_ROWS, columns // TILE_COLUMNS
    high_bits = residual_bits - 8
    arrays = [
        StoredArray(f"{name}.codes", "U8", (row_tiles, column_tiles, TILE_ELEMENTS // 2)),
        StoredArray(f"{name}.residual_low", "U8", (row_tiles, column_tiles, TILE_ELEMENTS)),
    ]
    if high_bits:
        arrays.append(StoredArray(f"{name}.residual_high", "U8", (row_tiles, column_tiles, high_bits, TILE_ROWS)))
    arrays.append(StoredArray(f"{name}.scales", "BF16", (row_tiles, padded(shape[1], GROUP) // GROUP, TILE_ROWS)))
    if has_row_shifts:
        arrays.append(StoredArray(f"{name}.row_shifts", "I8", (rows,)))
    return (
        *arrays,
        StoredArray(f"{name}.escape_counts", "U8", (row_tiles, column_tiles)),
        StoredArray(f"{name}.escape_offsets", "I64", (row_tiles + 1,)),
        StoredArray(f"{name}.escape_positions", "U8", (num_escapes,)),
        StoredArray(f"{name}.escape_high", "U8", (num_escapes,)),
    )


def draft_arrays(codec: str, name: str, shape: tuple[int, int]) -> tuple[StoredArray, ...]:
    """The arrays that the draft of a matrix in MXFP4 or BSFP reads: codes and scales."""
    arrays = mxfp4_arrays(name, shape) if codec == "mxfp4" else bsfp_arrays(name, shape, 8, False, 0)
    return tuple(array for array in arrays if array.name in (f"{name}.codes", f"{name}.scales"))


def stored_shape(record: TensorRecord) -> tuple[int, int]:
    """The shape of the matrix that the arrays of a tensor hold."""
    if (stack := record.stack) is not None:
        return stack.stored_shape
    if len(record.shape) != 2 or 0 in record.shape:
        raise PackageError(
            f"tensor {record.name}: {record.codec} {record.shape}; a non-empty matrix is required. Convert again."
        )
    return record.shape[0], record.shape[1]


def place_of(record: TensorRecord, expert: int | None) -> tuple[tuple[int, int], slice]:
    """(out_features, in_features), and the row tiles, of a matrix or of one expert of a stack."""
    stack = record.stack
    if stack is None or expert is None:
        assert stack is None and expert is None, f"{record.name}: a stack of experts, and one of them, go together"
        shape = stored_shape(record)
        return shape, slice(0, padded(shape[0], TILE_ROWS) // TILE_ROWS)
    assert 0 <= expert < stack.num_experts, f"tensor {record.name} has {stack.num_experts} experts, not {expert}"
    return stack.matrix_shape, slice(*stack.tiles(expert))


def tensor_arrays(record: TensorRecord) -> tuple[StoredArray, ...]:
    """The arrays of a quantized tensor; none of a kept one."""
    if (carried := record.carried_tensor) is not None:
        return (carried_array(carried),)
    if not record.is_quantized:
        return ()
    segments = record.all_segments
    table = segments[0].table(record.dtype) if segments else None
    return matrix_arrays(
        record.codec, record.name, stored_shape(record), table, sum(each.num_escapes for each in segments)
    )


def matrix_arrays(
    codec: str, name: str, shape: tuple[int, int], table: SegmentTable | None, num_escapes: int
) -> tuple[StoredArray, ...]:
    """The arrays of a matrix in a codec; the last two arguments are BSFP's."""
    if codec == "mxfp4":
        return mxfp4_arrays(name, shape)
    if codec == "mxint8":
        return mxint8_arrays(name, shape)
    assert codec == "bsfp" and table is not None, f"{name}: codec {codec}"
    return bsfp_arrays(name, shape, table.residual_bits, table.has_row_shifts, num_escapes)


DecodeBsfp = Callable[["PackedBsfp", SegmentTable, tuple[int, int]], U16]


@dataclass(frozen=True)
class StoredMxfp4:
    """An MXFP4 matrix as stored, see formats/mxfp4.md."""

    shape: tuple[int, int]
    codes: U8  # (row tiles, column tiles, 64)
    scales: U8  # (row tiles, blocks, 16)

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays."""
        return self.codes.nbytes + self.scales.nbytes

    def draft_rows(self, start: int, stop: int) -> F32:
        """The values of rows [start, stop)."""
        from mxconv.kernels.encoders import decode_mxfp4  # late: a decoder reads a draft's codes as they are

        tiles = _tiles(start, stop)
        return decode_mxfp4(self.codes[tiles], self.scales[tiles], (stop - start, self.shape[1]))


@dataclass(frozen=True)
class StoredMxint8:
    """An MXINT8 matrix as stored, see formats/mxint8.md."""

    shape: tuple[int, int]
    elements: I8  # (row tiles, column quads, 64)
    scales: U8  # (row tiles, blocks, 16)

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays."""
        return self.elements.nbytes + self.scales.nbytes

    def draft_rows(self, start: int, stop: int) -> F32:
        """The values of rows [start, stop)."""
        return BF16.decode(self.patterns(start, stop))

    def patterns(self, start: int, stop: int) -> U16:
        """The values of rows [start, stop) as BF16 patterns, exactly; start is a multiple of 16."""
        tiles = _tiles(start, stop)
        rows = mxint8_patterns(unpack_quads(self.elements[tiles]), unpack_scales(self.scales[tiles]))
        return rows[: stop - start, : self.shape[1]]


@dataclass(frozen=True)
class StoredBsfp:
    """A BSFP matrix as stored, see formats/bsfp.md."""

    shape: tuple[int, int]
    table: SegmentTable
    packed: "PackedBsfp"
    escape_offsets: I64  # (row tiles + 1,) index of each row tile's first escape
    rescale_factor: float

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays, or of its share of those of a stack."""
        arrays = [*vars(self.packed).values(), self.escape_offsets]
        return sum(array.nbytes for array in arrays if array is not None)

    def row_tiles(self, start: int, stop: int) -> "PackedBsfp":
        """The rows of tiles [start, stop), still packed."""
        p, offsets = self.packed, self.escape_offsets
        escapes = slice(int(offsets[start]), int(offsets[stop]))
        return replace(
            p,
            codes=p.codes[start:stop],
            residual_low=p.residual_low[start:stop],
            residual_high=p.residual_high[start:stop],
            scales=p.scales[start:stop],
            row_shifts=None if p.row_shifts is None else p.row_shifts[start * TILE_ROWS : stop * TILE_ROWS],
            escape_counts=p.escape_counts[start:stop],
            escape_positions=p.escape_positions[escapes],
            escape_high=p.escape_high[escapes],
        )

    def target_rows(self, start: int, stop: int, decode: DecodeBsfp | None = None) -> U16:
        """The 16-bit patterns of rows [start, stop): exact, unless the tensor was rescaled; start is a multiple of 16.

        `decode` is something faster than the reference that gives the same bits.
        """
        from mxconv.codecs.bsfp.packing import decode_bsfp
        from mxconv.codecs.bsfp.speq import undo_rescale

        tiles = self.row_tiles(start // TILE_ROWS, -(-stop // TILE_ROWS))
        patterns = (decode or decode_bsfp)(tiles, self.table, (stop - start, self.shape[1]))
        with np.errstate(over="ignore"):  # of a forged factor; the tensor's hash tells
            return undo_rescale(patterns, self.rescale_factor, self.table.float_format)

    def draft_rows(self, start: int, stop: int) -> F32:
        """The values of rows [start, stop)."""
        from mxconv.kernels.encoders import decode_bsfp_draft  # late: a decoder reads a draft's codes as they are

        tiles = _tiles(start, stop)
        packed = replace(self.packed, codes=self.packed.codes[tiles], scales=self.packed.scales[tiles])  # all it reads
        values = decode_bsfp_draft(packed, self.table, (stop - start, self.shape[1]))
        with np.errstate(over="ignore"):  # of a forged factor
            return values / np.float32(self.rescale_factor)


StoredDraft = StoredMxfp4 | StoredMxint8 | StoredBsfp
"""What a package has of a draft's matrix."""


def _tiles(start: int, stop: int) -> slice:
    """The row tiles of rows [start, stop)."""
    return slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
