"""Weights to look at: tensors that give their 16-bit patterns in slices of rows, wherever they are stored."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.rows import MAX_SLICE_WEIGHTS
from mxconv.report.draft_head import DraftHead


@dataclass(frozen=True)
class WeightTensor:
    """A tensor that can be read in slices of rows as 16-bit patterns, if it is a 16-bit float."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    float_format: FloatFormat | None  # None: only named, not counted
    is_quantized: bool  # in the package, or by `quantize` with its defaults
    reason: str
    rows: Callable[[int, int], U16] = field(repr=False)
    release: Callable[[int, int], None] = field(repr=False)
    codec: str | None = None  # of a package
    num_stored_bytes: int = 0
    draft_rows: Callable[[int, int], F32] | None = field(default=None, repr=False)  # a package's
    note: str | None = None
    matrices: Callable[[], list["WeightTensor"]] | None = field(default=None, repr=False)  # looked at in its place

    @property
    def num_weights(self) -> int:
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether the codecs can encode it."""
        return len(self.shape) == 2 and self.num_weights > 0

    def slices(self) -> Iterator[tuple[int, int, U16]]:
        """First row, end, and patterns of ascending slices, of a matrix whole tiles: the same wherever it is stored."""
        if self.num_weights == 0:
            return
        num_rows = self.shape[0] if self.shape else 1
        multiple = TILE_ROWS if self.is_matrix else 1
        step = max(MAX_SLICE_WEIGHTS // (self.num_weights // num_rows) // multiple, 1) * multiple
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            yield start, stop, self.rows(start, stop)
            self.release(start, stop)


@dataclass(frozen=True)
class Weights:
    """Everything that was opened."""

    source: str  # as given
    kind: Literal["checkpoint", "package"]
    commit: str | None
    tensors: tuple[WeightTensor, ...]  # sorted by name
    notes: tuple[str, ...] = ()
    draft_head: DraftHead | None = None  # what a checkpoint is that is no model of its own
    reopen: Callable[[], AbstractContextManager["Weights"]] | None = None  # in another process
