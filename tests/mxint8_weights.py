"""MXINT8 matrices for the kernels' tests: integers and scale bytes that a test chooses, as kernels read them."""

from dataclasses import dataclass

import numpy as np

from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_quads, pack_scales, pad
from mxconv.kernels.draft_matrix import EightBitMatrix, mxint8_matrix


@dataclass(frozen=True)
class Mxint8Weights:
    """A matrix as its integers and its scale bytes."""

    integers: np.ndarray  # (rows, columns) int8
    scales: np.ndarray  # (rows, blocks) uint8 E8M0

    @property
    def shape(self) -> tuple[int, int]:
        return self.integers.shape[0], self.integers.shape[1]

    @property
    def elements_as_stored(self) -> np.ndarray:
        return pack_quads(pad(self.integers.view(np.uint8), TILE_ROWS, BLOCK))

    @property
    def scales_as_stored(self) -> np.ndarray:
        return pack_scales(pad(self.scales, TILE_ROWS, 1))

    @property
    def reference(self) -> EightBitMatrix:
        return mxint8_matrix(self.shape, self.elements_as_stored, self.scales_as_stored)

    @property
    def factors(self) -> np.ndarray:
        """(rows, blocks) float64: what an integer is multiplied by."""
        return np.exp2(self.scales.astype(np.float64) - 127 - 6)

    @property
    def values(self) -> np.ndarray:
        """(rows, columns) float64."""
        return self.integers * np.repeat(self.factors, BLOCK, axis=1)[:, : self.shape[1]]

    def block_dots(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, rows, blocks) exact integer sums, and (tokens, blocks) the scales of the activations."""
        codes, x_scales = quantize_int8(x)
        padded = pad(self.integers, 1, BLOCK).reshape(len(self.integers), -1, BLOCK).astype(np.int64)
        dots = np.einsum("tbk,rbk->trb", codes.reshape(len(x), -1, BLOCK).astype(np.int64), padded)
        return dots, x_scales


def mxint8_weights(
    rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int] = (115, 131)
) -> Mxint8Weights:
    """Any integers, a block of zeros, a block of each extreme, and scale bytes of a range."""
    num_blocks = -(-shape[1] // BLOCK)
    integers = rng.integers(-127, 128, shape).astype(np.int8)
    for value in (0, 127, -127):
        row, block = rng.integers(shape[0]), rng.integers(num_blocks)
        integers[row, block * BLOCK : (block + 1) * BLOCK] = value
    return Mxint8Weights(integers, rng.integers(*scales, (shape[0], num_blocks), endpoint=True).astype(np.uint8))
