import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from oracles import e8m0_values_by_ml_dtypes

from mxconv.codecs.mx2 import check_mx2, dequantize_mx2, encode_mx2, pack_mx2, quantize_mx2, unpack_mx2
from mxconv.codecs.mxfp4 import NonFiniteError
from mxconv.errors import CodecError

ALL_SCALES = np.arange(254, dtype=np.uint8)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_all_codes_at_all_scales_are_their_product() -> None:
    codes = np.tile(np.arange(4, dtype=np.uint8), (254, 8))
    steps = e8m0_values_by_ml_dtypes(ALL_SCALES).astype(np.float64)
    expected = np.tile([1.0, 3.0, -1.0, -3.0], 8) * steps[:, None]
    found = dequantize_mx2(codes, ALL_SCALES[:, None])
    assert np.isfinite(found).all()
    assert np.array_equal(found.astype(np.float64), expected)


def test_values_of_the_format_survive_the_cast() -> None:
    codes = np.tile(np.array([1, 3, 0, 2, 3, 1, 2, 0], np.uint8), (254, 4))
    found, scales = quantize_mx2(dequantize_mx2(codes, ALL_SCALES[:, None]))
    assert np.array_equal(scales[:, 0], ALL_SCALES)
    assert np.array_equal(found, codes)


def test_ties_go_toward_zero_and_large_values_saturate() -> None:
    values = np.array([0.0, -0.0, 1, -1, 2, -2, np.nextafter(np.float32(2), np.float32(3)), -2.5, 3, 1e30], np.float32)
    assert encode_mx2(values).tolist() == [0, 2, 0, 2, 0, 2, 1, 3, 1, 1]


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=70), elements=finite))
def test_no_neighbouring_scale_errs_less_than_the_chosen_one(values: np.ndarray) -> None:
    rows, columns = values.shape
    codes, scales = quantize_mx2(values)
    assert codes.shape == (rows, -(-columns // 32) * 32)
    padded = np.zeros(codes.shape)
    padded[:, :columns] = values
    blocks = padded.reshape(rows, -1, 32)
    top = np.floor(np.log2(np.abs(blocks).max(axis=-1, initial=2.0**-149)))

    def errors(scales: np.ndarray) -> np.ndarray:
        levels = np.array([-3.0, -1.0, 1.0, 3.0]) * np.exp2(scales - 127.0)[:, :, None, None]
        # relative to the largest weight, since squares of the smallest are below float64
        distances = np.abs(blocks[..., None] - levels).min(axis=-1) * np.exp2(-top)[:, :, None]
        return np.sum(distances**2, axis=-1)

    chosen = scales.astype(np.float64)
    for step in (-1, 0, 1):
        candidate = np.clip(top - 2 + step + 127, 0, 253)
        is_zero = ~blocks.any(axis=-1)
        assert (is_zero | (errors(chosen) <= errors(candidate) * (1 + 1e-9))).all()
    assert not codes.reshape(rows, -1, 32)[~blocks.any(axis=-1)].any()


def test_blocks_of_zeros_are_zero_bytes_whatever_their_signs() -> None:
    codes, scales = quantize_mx2(np.array([[0.0, -0.0] * 16 + [1.0] + [-0.0] * 31], np.float32))
    assert not codes[0, :32].any() and scales[0, 0] == 0
    assert codes[0, 33:].tolist() == [2] * 31


@given(st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_each_code_lies_where_the_format_says(row_tiles: int, pairs: int, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    codes = rng.integers(0, 4, (16 * row_tiles, 16 * pairs)).astype(np.uint8)
    packed = pack_mx2(codes)
    assert packed.shape == (row_tiles, pairs, 64)
    for row, column in zip(*np.indices(codes.shape).reshape(2, -1), strict=True):
        place, four, inside = column // 16, column % 16 // 4, column % 4
        byte = packed[row // 16, place, 4 * (row % 16) + inside]
        assert byte >> 2 * four & 3 == codes[row, column]
    assert np.array_equal(unpack_mx2(packed), codes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(value: float) -> None:
    values = np.zeros((3, 40), np.float32)
    values[2, 33] = value
    with pytest.raises(NonFiniteError, match=rf"^value at index \(2, 33\) is {value}; MX formats need finite values"):
        quantize_mx2(values)


def test_what_the_format_does_not_have_is_refused() -> None:
    with pytest.raises(CodecError, match=r"^MX2 scale 254; 0 to 253 is required\.$"):
        check_mx2(np.array([[253, 254]], np.uint8))
    with pytest.raises(CodecError, match=r"^codes \(1, 64\) with scales \(1, 1\); one scale per 32 columns"):
        dequantize_mx2(np.zeros((1, 64), np.uint8), np.zeros((1, 1), np.uint8))
    with pytest.raises(CodecError, match=r"^code 4: above 3; 2-bit codes are required\.$"):
        pack_mx2(np.full((16, 16), 4, np.uint8))
    with pytest.raises(CodecError, match=r"^matrix \(16, 24\): multiples of 16 rows and 16 columns are required"):
        pack_mx2(np.zeros((16, 24), np.uint8))
