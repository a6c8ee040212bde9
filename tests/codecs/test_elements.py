"""Numbers of 4, 8 and 16 bits, and sums in a fixed order: exhaustively, beside ml_dtypes and transformers."""

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from mxconv.checkpoint.fp8_matrix import E4M3_VALUES, decode_fp8
from mxconv.codecs.e2m1 import (
    decode_e2m1,
    encode_e2m1,
    encode_e2m1_toward_zero,
)
from mxconv.codecs.e8m0 import NAN, decode_e8m0, encode_e8m0, floor_log2
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat, float_format
from mxconv.codecs.fold import fold, fold_in_place
from mxconv.codecs.int8 import dequantize_int8, quantize_int8
from mxconv.errors import CodecError

floats = st.floats(width=32, allow_nan=False)


@pytest.mark.parametrize("encode", [encode_e2m1, encode_e2m1_toward_zero])
def test_nan_is_an_error_that_names_its_index(encode) -> None:  # type: ignore[no-untyped-def]
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = np.nan
    with pytest.raises(
        CodecError, match=r"^value at index \(1, 2\) is NaN; E2M1 has no code for it\. Keep this tensor"
    ):
        encode(values)


def test_a_code_above_15_is_an_error() -> None:
    with pytest.raises(
        CodecError, match=r"^E2M1 code 16: above 15; one code a byte is required\. Unpack nibbles first\.$"
    ):
        decode_e2m1(np.array([3, 16], np.uint8))


def test_all_256_bytes() -> None:
    values = decode_e8m0(np.arange(256, dtype=np.uint8))
    assert values[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert np.isnan(values[NAN])


def test_exponents_survive_and_are_clamped_to_the_bytes_that_stand_for_numbers() -> None:
    exponents = np.arange(-300, 300, dtype=np.int32)
    scales = encode_e8m0(exponents)
    assert scales.max() == 254
    inside = (exponents >= -127) & (exponents <= 127)
    assert (decode_e8m0(scales) == 2.0 ** np.clip(exponents, -127, 127)).all()
    assert (scales[inside] == exponents[inside] + 127).all()


def test_floor_log2_is_exact_at_every_power_of_two_and_beside_it() -> None:
    for exponent in range(-149, 128):
        power = np.float32(2.0**exponent)
        beside = np.array([power, np.nextafter(power, np.float32(np.inf)), np.nextafter(power, np.float32(0))])
        expected = [math.frexp(float(value))[1] - 1 for value in beside]
        assert floor_log2(beside)[:2].tolist() == expected[:2]
        if beside[2] > 0:
            assert floor_log2(beside)[2] == exponent - 1


both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)
ALL = np.arange(1 << 16, dtype=np.uint16)


@both
def test_every_pattern_but_nan_survives_decoding_and_encoding(kind: FloatFormat) -> None:
    numbers = ALL[kind.infinity >= (ALL & MAGNITUDE_MASK)]
    assert (kind.encode(kind.decode(numbers)) == numbers).all()
    assert np.isnan(kind.decode(ALL[kind.infinity < (ALL & MAGNITUDE_MASK)])).all()


@both
def test_magnitude_patterns_grow_with_the_value(kind: FloatFormat) -> None:
    assert (np.diff(kind.decode(ALL[: kind.infinity + 1])) > 0).all()
    one = kind.exponent_bias * kind.patterns_per_octave
    assert kind.decode(np.array([one, one + kind.patterns_per_octave], np.uint16)).tolist() == [1, 2]


def test_bf16_is_the_upper_half_of_float32() -> None:
    expected = (ALL.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(BF16.decode(ALL), expected)


@both
def test_encoding_rounds_to_nearest_even_and_overflows_to_infinity(kind: FloatFormat) -> None:
    half = 2.0 ** -(kind.mantissa_bits + 1)
    values = np.array([1 + half, 1 + 3 * half, np.nextafter(np.float32(1 + half), np.float32(2))], np.float32)
    one = kind.exponent_bias * kind.patterns_per_octave
    assert kind.encode(values).tolist() == [one, one + 2, one + 1]
    assert kind.encode(np.array([3.4e38, -3.4e38], np.float32)).tolist() == [kind.infinity, kind.infinity | 0x8000]


def test_formats_go_by_their_safetensors_names() -> None:
    assert float_format("BF16") is BF16
    assert float_format("F16") is FP16
    with pytest.raises(CodecError, match=r"^dtype F32: not a 16-bit float; BF16 or F16 is required\.$"):
        float_format("F32")


VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "fp8.json"


def numbers(rows: list[str], num_digits: int) -> np.ndarray:
    return np.array(
        [[int(row[i : i + num_digits], 16) for i in range(0, len(row), num_digits)] for row in rows], np.uint32
    )


def test_every_byte_has_the_value_that_ml_dtypes_gives_it() -> None:
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(E4M3_VALUES, expected, equal_nan=True)
    assert np.array_equal(np.signbit(E4M3_VALUES[:0x7F]), np.signbit(expected[:0x7F]))
    assert np.signbit(E4M3_VALUES[0x80]) and np.flatnonzero(np.isnan(E4M3_VALUES)).tolist() == [0x7F, 0xFF]


def test_a_matrix_decodes_to_the_vector() -> None:
    vectors = json.loads(VECTORS.read_text())
    (values,) = numbers([vectors["values"]], 8)
    assert np.array_equal(E4M3_VALUES, values.view(np.float32), equal_nan=True)
    matrix = vectors["matrix"]
    codes, weights = numbers(matrix["codes"], 2).astype(np.uint8), numbers(matrix["weights"], 4)
    scales, block = numbers(matrix["scales"], 8).view(np.float32), tuple(matrix["block"])
    for start in range(len(codes)):  # any row may be the first
        assert np.array_equal(decode_fp8(codes[start:], scales, block, start), weights[start:])


@given(st.data())
def test_weights_are_those_of_transformers(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from([(128, 128), (16, 8), (1, 32)]))
    grid = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shape = grid[0] * block[0], grid[1] * block[1]  # transformers reads whole blocks alone
    codes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, shape).astype(np.uint8)
    finite = st.floats(2**-40, 2**20, width=32)
    scales = data.draw(arrays(np.float32, grid, elements=finite))
    weights = torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)
    expected = Fp8Dequantize(None)._dequantize_one(weights, torch.from_numpy(scales), torch.bfloat16)
    found = decode_fp8(codes, scales, block)
    patterns = expected.view(torch.int16).numpy().view(np.uint16)
    is_nan = (codes & 0x7F) == 0x7F
    assert np.array_equal(found[~is_nan], patterns[~is_nan])
    assert np.isnan(found[is_nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()


matrices = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, max_side=70), elements=st.floats(-(2.0**99), 2.0**99, width=32)
)


@given(matrices)
def test_the_error_is_at_most_half_a_step(activations: np.ndarray) -> None:
    codes, scales = quantize_int8(activations)
    columns = activations.shape[1]
    errors = np.abs(dequantize_int8(codes, scales)[:, :columns].astype(np.float64) - activations)
    step = np.repeat(np.where(scales > 0, scales, 2.0**-118), 32, axis=1)[:, :columns]  # 0: all are below 127 * 2^-126
    assert (errors <= step * (0.5 + 2.0**-15)).all()
    assert np.abs(codes.astype(int)).max() <= 127
    assert (codes[:, columns:] == 0).all()


@given(matrices)
def test_the_largest_of_a_block_becomes_127(activations: np.ndarray) -> None:
    codes, scales = quantize_int8(activations)
    largest = np.abs(codes.astype(int)).reshape(*scales.shape, 32).max(axis=-1)
    assert (largest == np.where(scales > 0, 127, 0)).all()


def test_zeros_and_blocks_too_small_for_a_scale_become_zeros() -> None:
    activations = np.zeros((2, 32), np.float32)
    activations[1] = 127 * 2.0**-127
    codes, scales = quantize_int8(activations)
    assert not codes.any()
    assert not scales.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_an_error_that_names_its_block(value: float) -> None:
    activations = np.zeros((3, 100), np.float32)
    activations[2, 70] = value
    with pytest.raises(CodecError, match=r"^activation block \(2, 2\) holds (nan|inf); finite values are required\.$"):
        quantize_int8(activations)


def folded_one_by_one(values: list[float]) -> float:
    while len(values) > 1:
        half = len(values) // 2
        upper = values[len(values) - half :]
        values = [v + upper[i] if i < half else v for i, v in enumerate(values[: len(values) - half])]
    return values[0] if values else 0.0


@given(st.lists(st.floats(-1e9, 1e9), max_size=400))
def test_the_order_is_upper_half_onto_lower_half(values: list[float]) -> None:
    assert fold(np.array(values, np.float64)) == folded_one_by_one(values)


@pytest.mark.parametrize("length", [1, 2, 7, 16, 17, 64, 172])
@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
def test_the_bits_are_the_same_along_any_axis(length: int, axis: int) -> None:
    values = np.random.default_rng(0).standard_normal((5, 3, length), np.float32)
    expected = fold(values)
    assert (fold_in_place(np.ascontiguousarray(np.moveaxis(values, -1, axis)), axis) == expected).all()


@pytest.mark.parametrize("width", [0, 1, 2, 3, 31, 32, 33, 127, 128, 1000])
def test_a_row_sums_to_the_same_bits_alone_and_among_others(width: int) -> None:
    rows = np.random.default_rng(width).normal(0, 1, (3, 5, width)).astype(np.float32)
    together = fold(rows)
    assert together.dtype == np.float32
    assert together.shape == (3, 5)
    assert all(fold(rows[i, j]) == together[i, j] for i, j in np.ndindex(3, 5))
