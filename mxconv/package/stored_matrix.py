"""A quantized matrix as its arrays lie in a package: the whole of a tensor, or one expert of a stack.

`draft_rows` has the values that stand for it in a draft, bit for bit those of `formats/`, for every reader of them; in
each format its `start` is a multiple of 16.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arrays import F32, I8, I64, U8, U16
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxint8 import mxint8_patterns
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_quads, unpack_scales

if TYPE_CHECKING:
    from mxconv.codecs.bsfp.packing import PackedBsfp

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
