import math

import numpy as np

from mxconv.codecs.e8m0 import NAN, decode_e8m0, encode_e8m0, floor_log2


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
