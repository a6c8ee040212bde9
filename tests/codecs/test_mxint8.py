import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from oracles import e8m0_values_by_ml_dtypes, int8_by_compressed_tensors

from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.mxfp4 import NonFiniteError
from mxconv.codecs.mxint8 import check_mxint8, dequantize_mxint8, mxint8_patterns, quantize_mxint8
from mxconv.errors import CodecError

ALL_ELEMENTS = np.arange(-127, 128, dtype=np.int8)
ALL_SCALES = np.arange(255, dtype=np.uint8)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def blocks_of(values: np.ndarray) -> np.ndarray:
    """(n, 32) with these values in the first column of each row's remaining zeros."""
    blocks = np.zeros((len(values), 32), np.float32)
    blocks[:, 0] = values
    return blocks


def by_fractions(value: float) -> tuple[int, int]:
    """Scale byte and element of a value alone in its block, in exact arithmetic."""
    if value == 0:
        return 0, 0
    exponent = max(-127, math.frexp(value)[1] - 1)
    steps = Fraction(value) * Fraction(2) ** (6 - exponent)
    return exponent + 127, max(-127, min(127, round(steps)))  # half to even


def test_all_elements_at_all_scales_are_their_product_in_float32_and_in_bf16() -> None:
    elements = np.zeros((255, 256), np.int8)
    elements[:, :255] = ALL_ELEMENTS
    scales = np.repeat(ALL_SCALES[:, None], 8, axis=1)
    steps = np.float64(1 / 64) * e8m0_values_by_ml_dtypes(ALL_SCALES).astype(np.float64)
    expected = elements.astype(np.float64) * steps[:, None]
    values = dequantize_mxint8(elements, scales)
    assert np.array_equal(values.astype(np.float64), expected)
    patterns = mxint8_patterns(elements, scales)
    assert np.array_equal(patterns.view(ml_dtypes.bfloat16).astype(np.float64), expected)
    found, found_scales = quantize_mxint8(values)
    lasting = np.abs(elements.reshape(255, 8, 32)).max(axis=-1) >= 64  # others have a smaller scale
    assert lasting.sum() == 255 * 5
    assert np.array_equal(found.reshape(255, 8, 32)[lasting], elements.reshape(255, 8, 32)[lasting])
    assert np.array_equal(found_scales[lasting], scales[lasting])


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_every_16_bit_weight_alone_is_rounded_as_exact_arithmetic_does(float_format) -> None:  # type: ignore[no-untyped-def]
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = float_format.decode(patterns[(patterns & 0x7FFF) < float_format.infinity])
    elements, scales = quantize_mxint8(blocks_of(values))
    expected = np.array([by_fractions(float(value)) for value in values])
    assert np.array_equal(scales[:, 0], expected[:, 0])
    assert np.array_equal(elements[:, 0], expected[:, 1])
    assert not elements[:, 1:].any()


@pytest.mark.parametrize("exponent", [-127, -126, -60, 0, 60, 127])
def test_every_tie_goes_to_the_even_element_and_its_neighbours_to_the_nearest(exponent: int) -> None:
    ties = (np.arange(-127, 127) + 0.5) / 64  # of a block whose largest is 1
    for shift, rule in ((0, np.rint), (1, np.ceil), (-1, np.floor)):
        moved = np.nextafter(ties.astype(np.float32), np.float32(shift * 8)) if shift else ties.astype(np.float32)
        values = np.zeros((len(ties), 32), np.float32)
        values[:, 0] = 1
        values[:, 1] = moved
        with np.errstate(under="ignore"):
            scaled = np.ldexp(values, exponent).astype(np.float32)
        if shift and exponent < -100:
            continue  # a neighbour of a subnormal is not this near
        elements, scales = quantize_mxint8(scaled)
        assert (scales == np.maximum(exponent, -127) + 127).all()
        assert np.array_equal(elements[:, 1], np.clip(rule(ties * 64), -127, 127))


@given(values=arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=70), elements=finite))
def test_elements_are_those_of_compressed_tensors_and_scales_the_power_of_two_below(values: np.ndarray) -> None:
    elements, scales = quantize_mxint8(values)
    padded = np.zeros(elements.shape, np.float32)
    padded[:, : values.shape[1]] = values
    amax = np.abs(padded).reshape(len(values), -1, 32).max(axis=-1).astype(np.float64)
    powers = e8m0_values_by_ml_dtypes(scales).astype(np.float64)
    assert (amax < 2 * powers).all()
    assert ((powers <= amax) | (scales == 0)).all()
    is_sound = (powers / 64 >= 2.0**-126) & (powers < 2.0**120)  # a scale of theirs is a normal binary32
    theirs = int8_by_compressed_tensors(padded, np.where(is_sound, powers / 64, 1).astype(np.float32))
    sound = np.repeat(is_sound, 32, axis=1)
    assert np.array_equal(elements[sound], theirs[sound])


def test_blocks_of_zeros_are_zero_bytes_whatever_their_signs() -> None:
    elements, scales = quantize_mxint8(np.array([[0.0, -0.0] * 16 + [1.0] + [-0.0] * 31], np.float32))
    assert elements.tolist() == [[0] * 32 + [64] + [0] * 31]
    assert scales.tolist() == [[0, 127]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_its_index(value: float) -> None:
    values = np.ones((4, 64), np.float32)
    values[2, 33] = value
    values[3, 1] = math.nan
    with pytest.raises(NonFiniteError, match=r"^value at index \(2, 33\) is -?(nan|inf); MX formats need finite val"):
        quantize_mxint8(values)


def test_bytes_that_no_writer_writes_are_refused() -> None:
    good, scales = np.full((1, 32), -127, np.int8), np.full((1, 1), 254, np.uint8)
    check_mxint8(good, scales)
    with pytest.raises(CodecError, match=r"^MXINT8 element -128; -127 to 127 is required\.$"):
        dequantize_mxint8(good - np.int8(1), scales)
    with pytest.raises(CodecError, match=r"^MXINT8 scale 255, which is NaN; 0 to 254 is required\.$"):
        dequantize_mxint8(good, scales + np.uint8(1))
    with pytest.raises(CodecError, match=r"^elements \(1, 32\) with scales \(1, 2\); one scale per 32 columns"):
        dequantize_mxint8(good, np.zeros((1, 2), np.uint8))
