"""A tensor as a package has it, in slices of rows: 16-bit patterns, or what was kept."""

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.dtypes import DTYPES
from mxconv.checkpoint.manifest import TensorRecord
from mxconv.checkpoint.package import Package
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels.encoders import decode_bsfp

SLICE_BYTES = 4 << 20


class RebuiltTensor:
    """A tensor of a package that has its target."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        """Find it.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        self.package, self.record = package, record
        self._stored = package.bsfp(record) if record.codec == "bsfp" else None

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop); a tensor of no dimensions has one.

        Args:
            start: of a matrix a multiple of 16.
            stop: of a matrix a multiple of 16, or the last row's end.

        Raises:
            CodecError: an escape list is damaged.
        """
        if self._stored is not None:
            return self._stored.target_rows(start, stop, decode_bsfp)
        kept = self.package.kept(self.record)
        return kept.rows(start, stop) if kept.shape else kept.array().reshape(1)

    def slices(self) -> Iterator[NDArray[np.generic]]:
        """Ascending slices, dropped from resident memory one by one."""
        num_rows = self.record.shape[0] if self.record.shape else 1
        row_bytes = max(num_bytes_of(self.record) // max(num_rows, 1), 1)
        step = max(SLICE_BYTES // row_bytes // TILE_ROWS, 1) * TILE_ROWS
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            yield self.rows(start, stop)
            self.package.release(self.record, start, stop)


def num_bytes_of(record: TensorRecord) -> int:
    """Of a tensor in its own dtype; 0 where the dtype is unknown."""
    return prod(record.shape) * DTYPES[record.dtype].num_bits // 8 if record.dtype in DTYPES else 0
