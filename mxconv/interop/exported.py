"""Shared by all exporters: their result, refusals, and the hash of the tensors that they read."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.errors import MxconvError, PackageError
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package


@dataclass(frozen=True)
class Export:
    """A finished export.

    Args:
        format: as `mxconv export --to` names it.
        files: the files written; of a folder, names relative to it.
        num_bytes: of all of them.
        num_tensors: in all of them.
        seconds: taken.
        notes: what a user should know, one sentence each: tensors that the format cannot hold at 4 bits, and why.
    """

    format: str
    files: list[str]
    num_bytes: int
    num_tensors: int
    seconds: float
    notes: tuple[str, ...] = ()


class SourceHash:
    """The hash of a tensor that is read once, piece by piece, compared with the recorded one."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        self._package, self._record = package, record
        self._digest = hashlib.sha256()

    def add(self, piece: NDArray[Any], is_last: bool) -> None:
        """Hash the next piece.

        Raises:
            PackageError: it was the last, and what was read is not what was recorded.
        """
        record = self._record
        self._digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        if is_last and self._digest.hexdigest() != record.sha256 and not record.is_rescaled:
            raise PackageError(
                f"{self._package.root}: tensor {record.name}: SHA-256 {self._digest.hexdigest()[:16]}...; the recorded "
                f"{record.sha256[:16]}... is required. The package or its source is damaged; run mxconv verify."
            )


def refuse_no_model(package: Package) -> None:
    """Raise MxconvError where the package has no config.json, without which no library loads the folder."""
    if all(record.path != "config.json" for record in package.manifest.files):
        raise MxconvError(
            f"{package.root}: has no config.json; other libraries need one. Convert the model's folder, not one file."
        )


def refuse_fp8(package: Package, what: str) -> None:
    """Raise MxconvError where the package's target is FP8; the first such tensor is named."""
    for record in package.manifest.tensors:
        if record.scaled is not None:
            raise MxconvError(
                f"{package.root}: tensor {record.name} is {record.dtype} with block scales; {what} is made of 16 bits "
                "alone. Export --to safetensors --level target, which has the FP8 weights."
            )
