"""The `vnni8` order: weights as tiles that one int8 dot-product instruction consumes whole.

A tile is 16 rows x 8 columns. Its nibbles take 64 bytes: byte 4r + j holds column j of row r in its low nibble and
column j + 4 in its high nibble, so that one mask and one shift yield two operands of four consecutive columns for
each of 16 rows. Tiles run along in_features first, then along out_features. Byte planes and bit planes follow the
same tile order. Normative text: formats/vnni8.md.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.errors import CodecError

TILE_ROWS = 16
TILE_COLUMNS = 8
TILE_ELEMENTS = TILE_ROWS * TILE_COLUMNS
QUAD = 4  # columns that a dot-product instruction takes at once

Scalar = TypeVar("Scalar", bound=np.generic)


def padded(length: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `length`."""
    return -(-length // multiple) * multiple


def pad(matrix: NDArray[Scalar], row_multiple: int, column_multiple: int) -> NDArray[Scalar]:
    """Zeros below and to the right, up to the next multiples; the matrix itself where it fits already."""
    rows, columns = matrix.shape
    shape = (padded(rows, row_multiple), padded(columns, column_multiple))
    if shape == matrix.shape:
        return matrix
    out = np.zeros(shape, matrix.dtype)
    out[:rows, :columns] = matrix
    return out


def to_tiles(matrix: NDArray[Scalar], tile_columns: int = TILE_COLUMNS) -> NDArray[Scalar]:
    """(rows, columns) -> (rows/16, columns/8, 16, 8), a view; or tiles of another width.

    Raises:
        CodecError: rows are no multiple of 16 or columns none of a tile's.
    """
    rows, columns = matrix.shape
    if rows % TILE_ROWS or columns % tile_columns:
        raise CodecError(
            f"matrix {matrix.shape}: multiples of {TILE_ROWS} rows and {tile_columns} columns are required. "
            "Pad it first."
        )
    tiles = matrix.reshape(rows // TILE_ROWS, TILE_ROWS, columns // tile_columns, tile_columns)
    return tiles.transpose(0, 2, 1, 3)


def from_tiles(tiles: NDArray[Scalar]) -> NDArray[Scalar]:
    """(rows/16, columns/8, 16, 8) -> (rows, columns); tiles may have another width."""
    row_tiles, column_tiles, _, tile_columns = tiles.shape
    return tiles.transpose(0, 2, 1, 3).reshape(row_tiles * TILE_ROWS, column_tiles * tile_columns)


def pack_nibbles(codes: U8) -> U8:
    """(rows, columns) codes 0..15 -> (rows/16, columns/8, 64) bytes.

    Raises:
        CodecError: the shape is not padded, or a code is above 15.
    """
    if codes.size and codes.max() > 15:
        raise CodecError(f"code {codes.max()}: above 15; 4-bit codes are required.")
    tiles = to_tiles(codes)
    packed = tiles[..., :4] | np.left_shift(tiles[..., 4:], 4, dtype=np.uint8)
    return packed.reshape(*tiles.shape[:2], 64)


def unpack_nibbles(packed: U8) -> U8:
    """(rows/16, columns/8, 64) bytes -> (rows, columns) codes."""
    tiles = packed.reshape(*packed.shape[:2], TILE_ROWS, 4)
    return from_tiles(np.concatenate([tiles & 0xF, tiles >> 4], axis=-1))


def pack_bytes(values: U8) -> U8:
    """(rows, columns) bytes -> (rows/16, columns/8, 128): byte 8r + c is column c of row r."""
    tiles = to_tiles(values)
    return tiles.reshape(*tiles.shape[:2], TILE_ELEMENTS)


def unpack_bytes(packed: U8) -> U8:
    """(rows/16, columns/8, 128) -> (rows, columns)."""
    return from_tiles(packed.reshape(*packed.shape[:2], TILE_ROWS, TILE_COLUMNS))


def pack_quads(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """(rows, columns) bytes -> (rows/16, columns/4, 64): byte 4r + c is column c of row r.

    Half a tile wide: what one dot-product instruction takes where weights have 8 bits.
    """
    tiles = to_tiles(values, QUAD)
    return tiles.reshape(*tiles.shape[:2], TILE_ROWS * QUAD)


def unpack_quads(packed: NDArray[Scalar]) -> NDArray[Scalar]:
    """(rows/16, columns/4, 64) -> (rows, columns)."""
    return from_tiles(packed.reshape(*packed.shape[:2], TILE_ROWS, QUAD))


def pack_bits(bits: U8) -> U8:
    """(rows, columns) of 0 and 1 -> (rows/16, columns/8, 16): bit c of byte r is column c of row r."""
    tiles = to_tiles(bits)
    return np.packbits(tiles, axis=-1, bitorder="little").reshape(*tiles.shape[:2], TILE_ROWS)


def unpack_bits(packed: U8) -> U8:
    """(rows/16, columns/8, 16) -> (rows, columns) of 0 and 1."""
    return from_tiles(np.unpackbits(packed[..., None], axis=-1, bitorder="little"))


def pack_scales(scales: NDArray[Scalar]) -> NDArray[Scalar]:
    """(rows, num_blocks) -> (rows/16, num_blocks, 16): the scales of 16 rows side by side."""
    rows, num_blocks = scales.shape
    if rows % TILE_ROWS:
        raise CodecError(f"scales {scales.shape}: a multiple of 16 rows is required. Pad them first.")
    return np.ascontiguousarray(scales.reshape(rows // TILE_ROWS, TILE_ROWS, num_blocks).transpose(0, 2, 1))


def unpack_scales(packed: NDArray[Scalar]) -> NDArray[Scalar]:
    """(rows/16, num_blocks, 16) -> (rows, num_blocks)."""
    row_tiles, num_blocks, _ = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 2, 1)).reshape(row_tiles * TILE_ROWS, num_blocks)


def pack_pairs(codes: U8) -> U8:
    """(rows, columns) codes 0..15 -> (rows, columns / 2) bytes as others pack them, the even column in bits 3..0."""
    return codes[:, 0::2] | np.left_shift(codes[:, 1::2], 4, dtype=np.uint8)


def unpack_pairs(pairs: U8) -> U8:
    """(rows, columns / 2) bytes -> (rows, columns) codes 0..15."""
    codes = np.empty((len(pairs), 2 * pairs.shape[1]), np.uint8)
    codes[:, 0::2] = pairs & 0xF
    codes[:, 1::2] = pairs >> 4
    return codes
