"""Tensors that a format has no place for, or that nobody has written to it yet."""

from mxconv.checkpoint.package import Package
from mxconv.errors import MxconvError


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
