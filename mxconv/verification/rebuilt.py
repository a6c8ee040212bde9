"""A tensor as a package has it, in slices of rows: 16-bit patterns, or what was kept."""

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.dtypes import DTYPES
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels.encoders import decode_bsfp
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package

SLICE_BYTES = 4 << 20


class RebuiltTensor:
    """A tensor of a package that has its target. The rows of a stack of experts are those of its experts, in turn."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        """Find it.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        self.package, self.record, self._stack = package, record, record.stack
        is_matrix = record.codec == "bsfp" and self._stack is None
        self._stored = package.bsfp(record) if is_matrix else None
        self._expert = -1  # the one that was rebuilt last
        self._matrix: NDArray[np.generic] = np.zeros((0, 0), np.uint16)  # of that expert, as the source has it
        self._is_rebuilt = self._stack is not None and record.name not in package.arrays

    @property
    def num_rows(self) -> int:
        """A tensor of no dimensions has one."""
        shape = self.record.shape
        return prod(shape[:2]) if self._stack is not None else shape[0] if shape else 1

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop).

        Args:
            start: of a matrix a multiple of 16.
            stop: of a matrix a multiple of 16, or the last row's end; of a stack in the same expert as start.

        Raises:
            CodecError: an escape list is damaged.
            PackageError: those of an expert contradict themselves.
        """
        if self._stored is not None:
            return self._stored.target_rows(start, stop, decode_bsfp)
        if self._is_rebuilt:
            expert, first = divmod(start, self.record.shape[1])
            return self._rebuilt(expert)[first : first + stop - start]
        kept = self.package.kept(self.record)
        if self._stack is not None:
            return kept.array().reshape(self.num_rows, -1)[start:stop]
        return kept.rows(start, stop) if kept.shape else kept.array().reshape(1)

    def slices(self) -> Iterator[NDArray[np.generic]]:
        """Ascending slices, dropped from resident memory one by one."""
        unit = self.num_rows if self._stack is None else self.record.shape[1]
        row_bytes = max(num_bytes_of(self.record) // max(self.num_rows, 1), 1)
        step = max(SLICE_BYTES // row_bytes // TILE_ROWS, 1) * TILE_ROWS
        for begin in range(0, self.num_rows, max(unit, 1)):
            for start in range(begin, begin + unit, step):
                stop = min(start + step, begin + unit)
                yield self.rows(start, stop)
                self.release(start, stop)

    def release(self, start: int, stop: int) -> None:
        """Drop rows from resident memory; of a stack, where an expert ends, all of it."""
        if self._stack is None:
            self.package.release(self.record, start, stop)
        elif stop % self.record.shape[1] == 0 and stop > start:
            self.package.release_expert(self.record, start // self.record.shape[1])

    def _rebuilt(self, expert: int) -> NDArray[np.generic]:
        carried = self.record.carried_tensor
        if expert == self._expert:
            return self._matrix
        if carried is not None:
            mxfp4 = self.package.mxfp4(self.record, expert)
            self._matrix = carried.from_tiles(mxfp4.codes if carried.part == "codes" else mxfp4.scales)
        elif self._stack is not None:
            stored = self.package.bsfp(self.record, expert)
            self._matrix = self._stack.matrix(stored.target_rows(0, stored.shape[0], decode_bsfp))
        self._expert = expert
        return self._matrix


def num_bytes_of(record: TensorRecord) -> int:
    """Of a tensor in its own dtype; 0 where the dtype is unknown."""
    return prod(record.shape) * DTYPES[record.dtype].num_bits // 8 if record.dtype in DTYPES else 0
