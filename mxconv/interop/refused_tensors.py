"""Tensors that a format has no place for, or that nobody has written to it yet."""

import re
from collections.abc import Set

from mxconv.errors import MxconvError
from mxconv.package.package import Package

_EXPERT = re.compile(r"\.experts\.\d+\.")


def refuse_stacks(package: Package, format_name: str) -> None:
    """Refuse a package with experts that are stacked in one tensor.

    Raises:
        MxconvError: it has some; the first one is named.
    """
    for record in package.manifest.tensors:
        if record.stack is not None:
            raise MxconvError(
                f"{package.root}: tensor {record.name} {record.shape} is a stack of experts; {format_name} is written "
                "of matrices and vectors alone. Export --to safetensors."
            )


def refuse_fp8(package: Package, what: str) -> None:
    """Refuse a package whose target is FP8.

    Raises:
        MxconvError: a tensor is; the first one is named.
    """
    for record in package.manifest.tensors:
        if record.scaled is not None:
            raise MxconvError(
                f"{package.root}: tensor {record.name} is {record.dtype} with block scales; {what} is made of 16 bits "
                "alone. Export --to safetensors --level target, which has the FP8 weights."
            )


def refuse_experts_left(package: Package, packed: Set[str]) -> None:
    """Refuse a package with a matrix of an expert that is not packed.

    transformers 5.23 makes one tensor of a layer's experts when it loads them, of packed matrices alone: the others it
    would draw at random, and only say so.

    Raises:
        MxconvError: one is not among `packed`; the first one is named.
    """
    for record in package.manifest.tensors:
        if len(record.shape) == 2 and _EXPERT.search(record.name) and record.name not in packed:
            raise MxconvError(
                f"{package.root}: tensor {record.name} {record.shape} of an expert cannot be packed as MXFP4; all "
                "matrices of experts, with in_features that are multiples of 32, are required. Export --to "
                "safetensors --level draft."
            )
