import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.e2m1 import (
    DOUBLED,
    MAGNITUDES,
    VALUES,
    decode_e2m1,
    encode_e2m1,
    encode_e2m1_toward_zero,
)
from mxconv.errors import CodecError

TIES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
EVEN = [0, 2, 2, 4, 4, 6, 6]
ZERO_SIDE = [0, 1, 2, 3, 4, 5, 6]

floats = st.floats(width=32, allow_nan=False)


def test_all_sixteen_codes_survive_both_encoders() -> None:
    codes = np.arange(16, dtype=np.uint8)
    assert encode_e2m1(decode_e2m1(codes)).tolist() == codes.tolist()
    assert encode_e2m1_toward_zero(decode_e2m1(codes)).tolist() == [*range(8), 0, *range(9, 16)]  # no negative zero


def test_codes_are_sign_exponent_mantissa() -> None:
    for code in range(16):
        exponent, mantissa = code >> 1 & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        assert VALUES[code] == (-magnitude if code & 8 else magnitude)
        assert DOUBLED[code] == 2 * VALUES[code]


def test_every_tie_goes_to_the_even_code_and_its_neighbours_to_the_nearer_one() -> None:
    below, above = np.nextafter(TIES, np.float32(0)), np.nextafter(TIES, np.float32(9))
    assert encode_e2m1(TIES).tolist() == EVEN
    assert encode_e2m1(below).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert encode_e2m1(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert encode_e2m1(-TIES).tolist() == [8 + code for code in EVEN]


def test_the_ggml_encoder_sends_every_tie_toward_zero() -> None:
    above = np.nextafter(TIES, np.float32(9))
    assert encode_e2m1_toward_zero(TIES).tolist() == ZERO_SIDE
    assert encode_e2m1_toward_zero(above).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert encode_e2m1_toward_zero(-TIES).tolist() == [0, *(8 + code for code in ZERO_SIDE[1:])]


def test_the_sign_of_zero_is_kept_and_ggml_drops_it() -> None:
    values = np.array([0.0, -0.0, -1e-45, -0.25], np.float32)
    assert encode_e2m1(values).tolist() == [0, 8, 8, 8]
    assert encode_e2m1_toward_zero(values).tolist() == [0, 0, 0, 0]


def test_large_values_and_infinities_saturate() -> None:
    values = np.array([6, 7, 8, 3e38, np.inf, -np.inf], np.float32)
    assert encode_e2m1(values).tolist() == [7, 7, 7, 7, 7, 15]


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


@given(floats)
def test_no_other_code_is_nearer(value: float) -> None:
    for encode in (encode_e2m1, encode_e2m1_toward_zero):
        code = int(encode(np.array([value], np.float32))[0])
        clipped = min(abs(value), 6.0)
        assert abs(clipped - MAGNITUDES[code & 7]) == min(abs(clipped - float(m)) for m in MAGNITUDES)
        assert code < 8 or np.signbit(value)
