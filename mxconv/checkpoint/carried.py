"""MXFP4 that a source has already: gpt-oss's blocks and scales, two tensors that are one stack of experts.

    X_blocks  U8 (experts, out_features, in_features / 32, 16)    two codes a byte, the even column's in bits 3..0
    X_scales  U8 (experts, out_features, in_features / 32)        E8M0

Normative text: formats/package.md, "Sources that are not 16 bits".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mxconv.arrays import U8
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import (
    TILE_ROWS,
    pack_nibbles,
    pack_pairs,
    pack_scales,
    pad,
    unpack_nibbles,
    unpack_pairs,
    unpack_scales,
)

Part = Literal["codes", "scales"]
ENDINGS: dict[Part, str] = {"codes": "_blocks", "scales": "_scales"}
BLOCK_BYTES = BLOCK // 2


@dataclass(frozen=True)
class CarriedTensor:
    """One of the two tensors."""

    of: str  # the name that both are of
    part: Part  # which of the stored arrays it becomes
    shape: tuple[int, ...]  # of the tensor

    @property
    def stack(self) -> StackedExperts:
        """The experts that both tensors are of."""
        num_experts, rows, num_blocks = self.shape[:3]
        return StackedExperts((num_experts, rows, num_blocks * BLOCK), "out_in")

    @property
    def partner(self) -> str:
        """The other tensor's name."""
        return self.of + ENDINGS["scales" if self.part == "codes" else "codes"]

    def to_tiles(self, rows: U8) -> U8:
        """Some rows of an expert, (rows, blocks, 16) or (rows, blocks), as they are stored."""
        if self.part == "codes":
            return pack_nibbles(pad(unpack_pairs(rows.reshape(len(rows), -1)), TILE_ROWS, 1))
        return pack_scales(pad(rows, TILE_ROWS, 1))

    def from_tiles(self, tiles: U8) -> U8:
        """An expert as it is stored, as (rows, bytes of a row) of the source."""
        rows, columns = self.stack.matrix_shape
        if self.part == "codes":
            return pack_pairs(unpack_nibbles(tiles)[:rows, :columns])
        return np.ascontiguousarray(unpack_scales(tiles)[:rows, : columns // BLOCK])


def carried_tensors(tensors: Mapping[str, SourceTensor]) -> dict[str, CarriedTensor]:
    """The blocks and scales among the tensors of a checkpoint, by name; neither without the other."""
    found = {}
    for name, blocks in tensors.items():
        of = name.removesuffix(ENDINGS["codes"])
        scales = tensors.get(of + ENDINGS["scales"])
        if of == name or scales is None or {blocks.dtype, scales.dtype} != {"U8"}:
            continue
        if len(blocks.shape) == 4 and (*scales.shape, BLOCK_BYTES) == blocks.shape and blocks.num_elements:
            found[name] = CarriedTensor(of, "codes", blocks.shape)
            found[scales.name] = CarriedTensor(of, "scales", scales.shape)
    return found
