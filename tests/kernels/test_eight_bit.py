"""The NumPy product of MXINT8 weights and int8 activations against exact integers and the weights' own values."""

import numpy as np
import pytest
from mxint8_weights import Mxint8Weights, mxint8_weights

SHAPES = [(1, 1), (5, 31), (16, 32), (20, 129), (257, 96)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def late_scaling_by_hand(weights: Mxint8Weights, x: np.ndarray) -> np.ndarray:
    """Exact integers over each block, then one float32 addition a block in ascending order."""
    dots, x_scales = weights.block_dots(x)
    assert np.abs(dots).max() < 1 << 24  # so float32 holds them
    factors = weights.factors.astype(np.float32)
    total = np.zeros(dots.shape[:2], np.float32)
    for block in range(dots.shape[2]):
        total += dots[..., block].astype(np.float32) * x_scales[:, block, None] * factors[None, :, block]
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_every_bit_follows_from_exact_integers_and_one_scaling_a_block(
    rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    weights = mxint8_weights(rng, shape)
    for num_tokens in (1, 2, 9):
        x = (rng.standard_normal((num_tokens, shape[1])) * 3).astype(np.float32)
        found = weights.reference.multiply(x)
        assert found.dtype == np.float32
        assert found.tobytes() == late_scaling_by_hand(weights, x).tobytes()


@pytest.mark.parametrize("scales", [(115, 131), (0, 1), (253, 254)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_values(rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int]) -> None:
    weights = mxint8_weights(rng, shape, scales)
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    rows = weights.reference.rows(indices)
    assert rows.dtype == np.float32
    assert (rows == weights.values[indices]).all()
    assert (weights.reference.turned().rows(np.arange(1))[0] == weights.values[:, 0]).all()
