import numpy as np
import pytest

from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat, float_format
from mxconv.errors import CodecError

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
