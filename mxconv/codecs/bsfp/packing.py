"""BSFP as stored: planes in tile order, escapes as lists, and the whole way from patterns to bytes and back."""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, I8, I64, U8, U16
from mxconv.codecs.bsfp.draft import COLUMN_MULTIPLE, decode_draft, fit_group_scales
from mxconv.codecs.bsfp.planes import Planes, decode_planes, encode_planes, planes_of, restore_escapes
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.vnni8 import (
    TILE_ELEMENTS,
    TILE_ROWS,
    from_tiles,
    pack_bits,
    pack_bytes,
    pack_nibbles,
    pack_scales,
    pad,
    to_tiles,
    unpack_bits,
    unpack_bytes,
    unpack_nibbles,
    unpack_scales,
)
from mxconv.errors import CodecError


@dataclass(frozen=True)
class PackedBsfp:
    """Rows of a BSFP matrix, padded to 16 rows and 32 columns. T = row tiles, C = column tiles, R = residual bits."""

    codes: U8  # (T, C, 64) nibbles
    residual_low: U8  # (T, C, 128) low bytes of the residuals
    residual_high: U8  # (T, C, R - 8, 16) their further bits, a plane each; empty at R = 8
    scales: U16  # (T, G, 16) BF16 patterns, G groups of 128 columns, the last one perhaps shorter
    row_shifts: I8 | None  # (16 T,) eighths of an octave
    escape_counts: U8  # (T, C) how many escapes each tile has
    escape_positions: U8  # (num_escapes,) 8 * row + column in the tile, ascending; tile after tile
    escape_high: U8  # (num_escapes,) bits 15..8 of the escaped pattern


def encode_bsfp(patterns: U16, table: SegmentTable, row_shifts: I8 | None = None) -> PackedBsfp:
    """Encode rows: lossless for every pattern.

    Args:
        patterns: (rows, columns) uint16; rows may be any number.
        row_shifts: (rows,) int8 for a table with row shifts.
    """
    planes = encode_planes(patterns, table, row_shifts)
    return _packed(patterns, planes, fit_group_scales(patterns, planes.nibbles, table), table, row_shifts)


def encode_bsfp_as(
    patterns: U16, codes: U8, scales: U16, table: SegmentTable, row_shifts: I8 | None = None
) -> PackedBsfp:
    """Encode rows whose draft is chosen: as lossless.

    Args:
        codes: (rows, columns) uint8; signs are those of the patterns.
        scales: (rows, num_groups) uint16 BF16 patterns.
    """
    return _packed(patterns, planes_of(patterns, codes, table, row_shifts), scales, table, row_shifts)


def _packed(patterns: U16, planes: Planes, scales: U16, table: SegmentTable, row_shifts: I8 | None) -> PackedBsfp:
    residuals = pad(planes.residuals, TILE_ROWS, COLUMN_MULTIPLE)
    high = [pack_bits((residuals >> bit & 1).astype(np.uint8)) for bit in range(8, table.residual_bits)]
    low = pack_bytes((residuals & 0xFF).astype(np.uint8))
    escaped = _in_tile_order(pad(planes.escaped, TILE_ROWS, COLUMN_MULTIPLE))
    source = _in_tile_order(pad(patterns, TILE_ROWS, COLUMN_MULTIPLE))
    num_padding_rows = -len(patterns) % TILE_ROWS
    return PackedBsfp(
        codes=pack_nibbles(pad(planes.nibbles, TILE_ROWS, COLUMN_MULTIPLE)),
        residual_low=low,
        residual_high=np.stack(high, axis=2) if high else np.zeros((*low.shape[:2], 0, TILE_ROWS), np.uint8),
        scales=pack_scales(pad(scales, TILE_ROWS, 1)),
        row_shifts=None if row_shifts is None else np.pad(row_shifts, (0, num_padding_rows)),
        escape_counts=escaped.sum(axis=-1).astype(np.uint8),
        escape_positions=np.nonzero(escaped)[2].astype(np.uint8),
        escape_high=(source[escaped] >> 8).astype(np.uint8),
    )


def decode_bsfp(packed: PackedBsfp, table: SegmentTable, shape: tuple[int, int]) -> U16:
    """The exact 16-bit patterns, (rows, columns) without padding.

    Raises:
        CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
    """
    residuals = unpack_bytes(packed.residual_low).astype(np.uint16)
    for plane in range(packed.residual_high.shape[2]):
        bits = unpack_bits(np.ascontiguousarray(packed.residual_high[:, :, plane]))
        residuals |= bits.astype(np.uint16) << (8 + plane)
    patterns = decode_planes(unpack_nibbles(packed.codes), residuals, table, packed.row_shifts)
    tiles = _in_tile_order(patterns)
    restore_escapes(tiles, escape_mask(packed), packed.escape_high)
    rows, columns = shape
    return from_tiles(tiles.reshape(*tiles.shape[:2], TILE_ROWS, -1))[:rows, :columns]


def decode_bsfp_draft(packed: PackedBsfp, table: SegmentTable, shape: tuple[int, int]) -> F32:
    """The draft's values: (rows, columns) float32."""
    rows, columns = shape
    nibbles = unpack_nibbles(packed.codes)
    return decode_draft(nibbles, unpack_scales(packed.scales), table)[:rows, :columns]


def escape_offsets(packed: PackedBsfp) -> I64:
    """(T + 1,) int64: the index of each row tile's first escape, and how many there are."""
    in_tiles = packed.escape_counts.sum(axis=1, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(in_tiles)])


def _in_tile_order(matrix: np.ndarray) -> np.ndarray:
    """(16 T, 8 C) -> (T, C, 128), a copy."""
    tiles = to_tiles(matrix)
    return tiles.reshape(*tiles.shape[:2], TILE_ELEMENTS)


def escape_mask(packed: PackedBsfp) -> np.ndarray:
    """(T, C, 128) bool from counts and positions; raises CodecError where the escape lists contradict themselves."""
    counts, positions = packed.escape_counts, packed.escape_positions
    total = int(counts.sum(dtype=np.int64))
    if total != len(positions) or total != len(packed.escape_high):
        raise CodecError(
            f"escapes: counts sum to {total}, but {len(positions)} positions and {len(packed.escape_high)} high bytes "
            f"are there; all three must agree. The file is damaged; convert again."
        )
    mask = np.zeros((counts.size, TILE_ELEMENTS), bool)
    tiles = np.repeat(np.arange(counts.size), counts.ravel())
    if total and positions.max() >= TILE_ELEMENTS:
        raise CodecError(f"escapes: position {positions.max()}; 0 to 127 is required. The file is damaged.")
    mask[tiles, positions] = True
    if int(mask.sum()) != total:
        raise CodecError("escapes: a position occurs twice in a tile; each must be named once. The file is damaged.")
    ascending = np.diff(positions.astype(np.int16)) > 0
    if not (ascending | (np.diff(tiles) > 0)).all():
        raise CodecError("escapes: positions in a tile do not ascend, which is required. The file is damaged.")
    return mask.reshape(*counts.shape, TILE_ELEMENTS)
