"""Weights that encoders have to get right, and what the tests of all of them share."""

from functools import cache
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest

from mxconv.codecs.float16 import BF16, FP16, FloatFormat

VECTORS = Path(__file__).parents[1] / "formats" / "vectors"
SHAPES = [(1, 1), (1, 300), (15, 31), (16, 32), (17, 33), (31, 129), (20, 1100)]
both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


@cache
def weights(kind: FloatFormat, shape: tuple[int, int]) -> np.ndarray:
    """Gaussian rows octaves apart; outliers, both zeros, blocks and rows of zeros, subnormals, the largest numbers."""
    rng = np.random.default_rng(shape[0] * 10_000 + shape[1])
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, (shape[0], 1))
    values[rng.random(shape) < 0.02] *= 2.0**-9
    values[rng.random(shape) < 0.02] *= 2.0**5
    patterns = kind.encode(values.astype(np.float32))
    patterns[rng.random(shape) < 0.05] &= 0x8000
    for row in range(0, shape[0], 3):
        first = int(rng.integers(shape[1]))
        content = row // 3 % 4
        block = patterns[row, first // 32 * 32 : first // 32 * 32 + 32]
        if content == 0:  # around the smallest normal number
            block[:] = rng.integers(0, 40 * kind.patterns_per_octave // 8, block.shape) | (block & 0x8000)
        elif content == 1:
            block &= 0x8000
        elif content == 2:
            block[:] = kind.infinity - 1 - rng.integers(0, 4 * kind.patterns_per_octave, block.shape)
        else:
            patterns[row] &= 0x8000
    assert ((patterns & 0x7FFF) < kind.infinity).all()
    patterns.flags.writeable = False
    return patterns


matrices = arrays.arrays(np.uint16, arrays.array_shapes(min_dims=2, max_dims=2, max_side=70))
