"""One tensor of a package as a weight on a device, made of arrays that are there already."""

from collections.abc import Mapping

import torch

from mxconv.checkpoint.manifest import TensorRecord
from mxconv.checkpoint.package import Package
from mxconv.errors import CodecError, PackageError
from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.arrays.upload import as_words
from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.weight import Activations, FourBitWeight, Weight


def stored_weight(
    package: Package,
    record: TensorRecord,
    parts: Mapping[str, torch.Tensor],
    device: torch.device,
    activations: Activations,
) -> Weight:
    """A quantized matrix.

    Args:
        package: where it is stored.
        record: no stack.
        parts: its arrays on the device by the last part of their names; of BSFP all that kernels read, or codes and
            scales alone for the draft.
        device: where they are.
        activations: of the draft; BF16 where its levels are no integers.

    Raises:
        PackageError: its escape lists contradict themselves.
    """
    if record.codec == "mxfp4":
        rows, columns = record.shape
        arrays = FourBitArrays.of_mxfp4(as_words(parts["codes"]), parts["scales"], (rows, columns))
        return FourBitWeight(arrays, activations)
    held = package.bsfp(record)
    if "residual_low" not in parts:
        arrays = FourBitArrays.of_bsfp(as_words(parts["codes"]), parts["scales"], held.table, held.shape)
        return FourBitWeight(arrays, activations if arrays.int8_levels is not None else "bf16")
    try:
        return BsfpWeight.from_packed(held.packed, held.table, held.shape, device, activations, parts)
    except CodecError as error:
        raise PackageError(f"{package.root}: tensor {record.name}: {error}") from error
