"""Experts that a checkpoint stacks in one tensor of three dimensions: which tensors they are, and how they are stored.

    experts = StackedExperts((8, 64, 192), "in_out")
    experts.matrix_shape       # (192, 64): (out_features, in_features) of each
    experts.stored_shape       # (1536, 64): what the arrays of a package hold, one matrix below the other

A layer has two stacks: one leads from hidden_size to the experts' own size, one back. Where the first holds gates and
ups side by side, its shape and that of the second say which axis is which, so that no family need be known:

    first (E, a, b), second (E, c, d)    out_in: a = 2 d and b = c    in_out: b = 2 c and a = d    never both

gpt_oss, llama4 and aria have in_out; qwen3_vl_moe has either, by the version that wrote it; granitemoe, gemma4 and
qwen3_5_moe have out_in. Stacks without gates fit both ways: for them the table says it.

gpt-oss has its stacks in MXFP4 too, as two tensors:

    X_blocks  U8 (experts, out_features, in_features / 32, 16)    two codes a byte, the even column's in bits 3..0
    X_scales  U8 (experts, out_features, in_features / 32)        E8M0

Normative text: formats/package.md, "Stacked experts" and "Sources that are not 16 bits".

Source:
    the modules of transformers 5.23 that hold a Parameter of three dimensions, and its table of names in checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import (
    TILE_ROWS,
    pack_nibbles,
    pack_pairs,
    pack_scales,
    pad,
    padded,
    unpack_nibbles,
    unpack_pairs,
    unpack_scales,
)

Axes = Literal["out_in", "in_out"]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class StackedExperts:
    """A stack of matrices."""

    # of the tensor, no dimension empty: (experts, out_features, in_features), or the last two exchanged
    shape: tuple[int, ...]
    axes: Axes  # which of the two it is

    @property
    def num_experts(self) -> int:
        return self.shape[0]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(out_features, in_features) of each expert."""
        first, second = self.shape[1:]
        return (first, second) if self.axes == "out_in" else (second, first)

    @property
    def num_tiles(self) -> int:
        """Row tiles of each expert."""
        return padded(self.matrix_shape[0], TILE_ROWS) // TILE_ROWS

    @property
    def stored_shape(self) -> tuple[int, int]:
        """(rows, in_features) of the matrix that the arrays of a package hold: every expert padded to whole tiles."""
        return self.num_experts * self.num_tiles * TILE_ROWS, self.matrix_shape[1]

    def tiles(self, expert: int) -> tuple[int, int]:
        """The row tiles [first, end) of an expert."""
        return expert * self.num_tiles, (expert + 1) * self.num_tiles

    def matrix(self, stored: NDArray[Scalar]) -> NDArray[Scalar]:
        """An expert as the tensor has it to (out_features, in_features), or back: a view."""
        return stored if self.axes == "out_in" else stored.T


class Shaped(Protocol):
    """Anything with a shape, as a tensor of a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class ExpertNames:
    """How the names of a layer's two stacks end."""

    first: str  # hidden_size to the experts' own size
    second: str  # and back
    axes_without_gates: Axes | None = None  # None: such stacks always have gates


EXPERT_NAMES = (
    ExpertNames(".experts.gate_up_proj", ".experts.down_proj"),
    ExpertNames(".experts.fc1.weight", ".experts.fc2.weight"),  # aria
    ExpertNames(".input_linear.weight", ".output_linear.weight", "out_in"),  # granitemoe; jetmoe, attention too
)


def stacked_experts(tensors: Mapping[str, Shaped]) -> dict[str, StackedExperts]:
    """The stacks among the tensors of a checkpoint, by name.

    Stacks whose shapes fit no way, or one without the other, are not among them.
    """
    found: dict[str, StackedExperts] = {}
    for name, tensor in tensors.items():
        for names in EXPERT_NAMES:
            if not name.endswith(names.first):
                continue
            other = name.removesuffix(names.first) + names.second
            if other in tensors and (axes := _axes(tensor.shape, tensors[other].shape, names)):
                found[name] = StackedExperts(tensor.shape, axes)
                found[other] = StackedExperts(tensors[other].shape, axes)
    return found


def _axes(first: tuple[int, ...], second: tuple[int, ...], names: ExpertNames) -> Axes | None:
    if len(first) != 3 or len(second) != 3 or first[0] != second[0] or 0 in (*first, *second):
        return None
    (_, a, b), (_, c, d) = first, second
    if (a, b) == (2 * d, c):
        return "out_in"
    if (a, b) == (d, 2 * c):
        return "in_out"
    return names.axes_without_gates if (a, b) == (d, c) else None


Part = Literal["codes", "scales"]
ENDINGS: dict[Part, str] = {"codes": "_blocks", "scales": "_scales"}
BLOCK_BYTES = BLOCK // 2


@dataclass(frozen=True)
class CarriedTensor:
    """The blocks or the scales of a stack that the source has in MXFP4 already."""

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
