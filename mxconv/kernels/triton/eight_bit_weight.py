"""The output head of an MXFP4 draft on a GPU: MXINT8, decoded once to the BF16 numbers that its weights are."""

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS
from mxconv.kernels.triton.launch import MAX_TOKENS
from mxconv.kernels.triton.panels import multiply_by_panels, panel_rows
from mxconv.kernels.triton.weight import check_tokens


class EightBitWeight:
    """Implements `Weight`: BF16 numbers, exact, which torch multiplies.

    Args:
        elements: (row tiles, column quads, 64) int8, on the device.
        scales: (row tiles, blocks, 16) uint8, there too.
        shape: (rows, columns) without padding.
    """

    def __init__(self, elements: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int]) -> None:
        self.rows, self.columns = shape
        self._values = torch.empty(shape, dtype=torch.bfloat16, device=elements.device)
        # a table, since powers of two are not exact in every exp2
        powers: F32 = decode_e8m0(np.arange(256, dtype=np.uint8)) * np.float32(2.0**-FRACTION_BITS)
        table = torch.from_numpy(powers).to(elements.device)
        step = panel_rows(self.columns) // TILE_ROWS
        for first in range(0, len(elements), step):
            tiles = elements[first : first + step]
            blocks = tiles.view(*scales[first : first + step].shape[:2], -1, TILE_ROWS, QUAD).permute(0, 3, 1, 2, 4)
            steps = table[scales[first : first + step].long()].permute(0, 2, 1)[..., None, None]
            values = (blocks.float() * steps).reshape(len(tiles) * TILE_ROWS, -1)
            start = first * TILE_ROWS
            stop = min(start + len(values), self.rows)
            self._values[start:stop] = values[: stop - start, : self.columns]

    @property
    def num_bytes(self) -> int:
        """On the device."""
        return self._values.nbytes

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """As `Weight.product`, rounded to 16 bits by torch. Up to 16 tokens are 16, absent ones being zeros."""
        check_tokens(x, self.columns, self._values.device)
        num_tokens = len(x)
        x = x.to(torch.bfloat16)
        if num_tokens < MAX_TOKENS.value:
            x = torch.cat([x, x.new_zeros(MAX_TOKENS.value - num_tokens, self.columns)])
        found = multiply_by_panels(x, self.rows, lambda first, count: self._values[first : first + count])
        return found[:num_tokens]

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) BF16: the weights themselves."""
        return self._values
