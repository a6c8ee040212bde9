"""Matrices of a package as weights on a device, made of arrays that are there already."""

from collections.abc import Mapping

import torch

from mxconv.errors import CodecError, PackageError
from mxconv.gpu.expert_group import ExpertGroup
from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.arrays.upload import as_words
from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.expert_stack import ExpertStack
from mxconv.kernels.triton.weight import Activations, FourBitWeight
from mxconv.package.package import Package
from mxconv.package.tensor_arrays import place_of
from mxconv.package.tensor_record import TensorRecord

Parts = Mapping[str, torch.Tensor]  # of a tensor, by the last part of their names


def stored_weight(
    package: Package,
    record: TensorRecord,
    parts: Parts,
    device: torch.device,
    activations: Activations,
    expert: int | None = None,
    num_planes: int = 0,
    has_row_starts: bool = False,
) -> BsfpWeight | FourBitWeight:
    """A quantized matrix.

    Args:
        package: where it is stored.
        record: the tensor.
        parts: its arrays on the device; of BSFP all that kernels read, or codes and scales alone for the draft.
        device: where they are.
        activations: of the draft; BF16 where its levels are no integers.
        expert: which one of a stack.
        num_planes: as for `BsfpArrays.from_packed`.
        has_row_starts: likewise.

    Raises:
        PackageError: its escape lists contradict themselves.
    """
    shape, tiles = place_of(record, expert)
    codes, scales = as_words(parts["codes"][tiles]), parts["scales"][tiles]
    if record.codec == "mxfp4":
        return FourBitWeight(FourBitArrays.of_mxfp4(codes, scales, shape), activations)
    held = package.bsfp(record, expert)
    if "residual_low" not in parts:
        arrays = FourBitArrays.of_bsfp(codes, scales, held.table, shape)
        return FourBitWeight(arrays, activations if arrays.int8_levels is not None else "bf16")
    first = int(package.arrays[f"{record.stem}.escape_offsets"].array()[tiles.start])
    escapes = slice(first, first + len(held.packed.escape_high))
    mine = {
        name: part[escapes if name in ("escape_positions", "escape_high") else tiles] for name, part in parts.items()
    }
    try:
        return BsfpWeight.from_packed(
            held.packed, held.table, shape, device, activations, mine, num_planes, has_row_starts
        )
    except CodecError as error:
        raise PackageError(f"{package.root}: tensor {record.name}: {error}") from error


def stored_stack(
    package: Package, group: ExpertGroup, parts: Mapping[str, Parts], device: torch.device, activations: Activations
) -> ExpertStack:
    """The experts of a group.

    Args:
        package: where they are stored.
        group: which they are.
        parts: their arrays as for `stored_weight`, by the stem of each tensor.
        device: where they are.
        activations: as for `stored_weight`.
    """
    return ExpertStack([
        stored_weight(
            package, record, parts[record.stem], device, activations, expert, group.num_planes, group.has_row_starts
        )
        for record, expert in group.members
    ])  # fmt: skip
