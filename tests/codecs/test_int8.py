import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mxconv.codecs.int8 import dequantize_int8, quantize_int8
from mxconv.errors import CodecError

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
