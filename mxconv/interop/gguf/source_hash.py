"""The hash of a tensor that is read once, piece by piece, compared with the one that was recorded."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.errors import PackageError
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package


class SourceHash:
    """Of one tensor."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        self._package, self._record = package, record
        self._digest = hashlib.sha256()

    def add(self, piece: NDArray[Any], is_last: bool) -> None:
        """The next piece.

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
