"""The positions of a pass's rows, and what follows from them: every kind of rotation is computed once."""

import math
from collections.abc import Sequence

import numpy as np

from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.rope import RotaryEmbedding


class Positions:
    """Of the rows of a pass, in their order.

    Args:
        numbers: of each row: how many tokens stand before it on its path.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        self._rotations: dict[RotaryEmbedding, tuple[F32, F32]] = {}

    def rotations(self, rotary: RotaryEmbedding) -> tuple[F32, F32]:
        """Cosines and sines, (num_rows, 1, rotary_dim / 2) each."""
        if rotary not in self._rotations:
            self._rotations[rotary] = rotary.rotations(self.numbers)
        return self._rotations[rotary]

    def temperatures(self, temperature: Temperature) -> F32:
        """What each row's queries are multiplied by, (num_rows, 1, 1)."""
        steps = (math.log1p((number + temperature.first) // temperature.length) for number in self.numbers)
        factors = np.array([1 + temperature.beta * step for step in steps], np.float32)
        return factors[:, None, None]
