"""Tensors that are read as 16-bit patterns in slices of rows, wherever they are stored."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Literal

import numpy as np

from mxconv.arrays import F32, U16
from mxconv.checkpoint.fp8_matrix import Fp8Matrix
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.codecs.float16 import BF16, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.plan import MAX_SLICE_WEIGHTS


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
        """First row, end and patterns of ascending slices; those of a matrix are whole tiles."""
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
class OpenWeights:
    """The tensors of an open checkpoint or package."""

    source: str  # as given
    kind: Literal["checkpoint", "package"]
    commit: str | None
    tensors: tuple[WeightTensor, ...]  # sorted by name
    notes: tuple[str, ...] = ()
    reopen: Callable[[], AbstractContextManager["OpenWeights"]] | None = None  # in another process


def with_experts(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """The tensor, with its experts as matrices that are read from its own rows.

    Args:
        tensor: (experts, ...), whose rows are experts.
        stack: its shape and axes.
    """
    return replace(tensor, matrices=lambda: [_expert(tensor, stack, n) for n in range(stack.num_experts)])


def stacked(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """The tensor, with patterns and draft that are stacked from its experts."""

    @cache
    def experts() -> list[WeightTensor]:
        assert tensor.matrices is not None
        return tensor.matrices()

    def rows(start: int, stop: int) -> U16:
        return np.stack([stack.matrix(e.rows(0, e.shape[0])) for e in experts()[start:stop]])

    def draft_rows(start: int, stop: int) -> F32:
        found = []
        for expert in experts()[start:stop]:
            assert expert.draft_rows is not None
            found.append(stack.matrix(expert.draft_rows(0, expert.shape[0])))
        return np.stack(found)

    def release(start: int, stop: int) -> None:
        for expert in experts()[start:stop]:
            expert.release(0, expert.shape[0])

    return replace(tensor, rows=rows, draft_rows=draft_rows, release=release, matrices=experts)


def _expert(tensor: WeightTensor, stack: StackedExperts, number: int) -> WeightTensor:
    def rows(start: int, stop: int) -> U16:
        (stored,) = tensor.rows(number, number + 1)
        return np.ascontiguousarray(stack.matrix(stored)[start:stop])

    def release(start: int, stop: int) -> None:
        if stop == stack.matrix_shape[0]:
            tensor.release(number, number + 1)

    return replace(
        tensor,
        name=f"{tensor.name}[{number}]",
        shape=stack.matrix_shape,
        rows=rows,
        release=release,
        matrices=None,
    )


def decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """The BF16 weights of a tensor of FP8 bytes."""
    return replace(tensor, float_format=BF16, rows=fp8.patterns, note="FP8, decoded to BF16", matrices=None)


def with_decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """The tensor of FP8 bytes, with its decoded weights as its matrix."""
    return replace(tensor, matrices=lambda: [decoded(tensor, fp8)])
