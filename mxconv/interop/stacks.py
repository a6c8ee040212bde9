"""Formats that have no place for a stack of experts in 4 bits."""

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
