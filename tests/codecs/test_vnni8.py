import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs import vnni8
from mxconv.errors import CodecError

shapes = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 2**32 - 1))


def matrix_of(shape: tuple[int, int, int], limit: int, dtype: type = np.uint8) -> np.ndarray:
    row_tiles, column_tiles, seed = shape
    return np.random.default_rng(seed).integers(0, limit, (16 * row_tiles, 8 * column_tiles)).astype(dtype)


@given(shapes)
def test_unpacking_undoes_packing(shape: tuple[int, int, int]) -> None:
    for part, limit, tile_bytes in (("nibbles", 16, 64), ("bytes", 256, 128), ("bits", 2, 16), ("quads", 256, 64)):
        matrix = matrix_of(shape, limit)
        packed = getattr(vnni8, f"pack_{part}")(matrix)
        assert packed.dtype == np.uint8
        assert packed.shape == (shape[0], shape[1] * (2 if part == "quads" else 1), tile_bytes)
        assert (getattr(vnni8, f"unpack_{part}")(packed) == matrix).all()


def test_each_element_lies_where_the_format_says() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, (32, 24)).astype(np.uint8)
    nibbles, bits = values & 0xF, values >> 7
    packed_nibbles, packed_bytes = vnni8.pack_nibbles(nibbles), vnni8.pack_bytes(values)
    packed_bits, packed_scales = vnni8.pack_bits(bits), vnni8.pack_scales(values)
    packed_quads = vnni8.pack_quads(values)
    for row, column in np.ndindex(values.shape):
        tile, r, c = (row // 16, column // 8), row % 16, column % 8
        byte = packed_nibbles[tile][4 * r + c % 4]
        assert (byte >> 4 if c >= 4 else byte & 0xF) == nibbles[row, column]
        assert packed_bytes[tile][8 * r + c] == values[row, column]
        assert packed_quads[row // 16, column // 4, 4 * r + column % 4] == values[row, column]
        assert packed_bits[tile][r] >> c & 1 == bits[row, column]
        assert packed_scales[row // 16, column, r] == values[row, column]


def test_tiles_are_a_view_and_come_back() -> None:
    matrix = np.arange(32 * 16).reshape(32, 16)
    tiles = vnni8.to_tiles(matrix)
    assert tiles.shape == (2, 2, 16, 8)
    assert np.shares_memory(tiles, matrix)
    assert (vnni8.from_tiles(tiles) == matrix).all()


def test_padding_adds_zeros_and_leaves_what_fits_alone() -> None:
    matrix = np.full((17, 9), 7, np.uint8)
    out = vnni8.pad(matrix, 16, 8)
    assert out.shape == (32, 16)
    assert out.sum() == matrix.sum()
    assert (out[:17, :9] == 7).all()
    assert vnni8.pad(out, 16, 8) is out


@pytest.mark.parametrize("shape", [(15, 8), (16, 9), (1, 1)])
def test_an_unpadded_matrix_is_an_error(shape: tuple[int, int]) -> None:
    message = rf"^matrix \({shape[0]}, {shape[1]}\): multiples of 16 rows and 8 columns are required\. Pad it first\.$"
    for pack in (vnni8.pack_nibbles, vnni8.pack_bytes, vnni8.pack_bits):
        with pytest.raises(CodecError, match=message):
            pack(np.zeros(shape, np.uint8))
    if shape[1] % 8:
        with pytest.raises(CodecError, match=message.replace("8 columns", "4 columns")):
            vnni8.pack_quads(np.zeros(shape, np.uint8))


def test_unpadded_scales_are_an_error() -> None:
    with pytest.raises(CodecError, match=r"^scales \(17, 3\): a multiple of 16 rows is required\. Pad them first\.$"):
        vnni8.pack_scales(np.zeros((17, 3), np.uint8))


def test_a_code_above_15_is_an_error() -> None:
    with pytest.raises(CodecError, match=r"^code 16: above 15; 4-bit codes are required\.$"):
        vnni8.pack_nibbles(np.full((16, 8), 16, np.uint8))
