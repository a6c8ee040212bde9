"""Which rows and columns of a checkpoint's tensor stand at which of GGUF's."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I64
from mxconv.checkpoint.gguf.rope_rows import hf_rows
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.interop.gguf.place import Place, Ranges, RowOrder

Scalar = TypeVar("Scalar", bound=np.generic)


def indices(ranges: Ranges) -> I64:
    """All of them, one behind the other."""
    return np.concatenate([np.arange(each.start, each.stop, each.step, dtype=np.int64) for each in ranges])


def source_rows(place: Place, start: int, stop: int, num_rows: int) -> I64 | None:
    """The checkpoint's rows at GGUF's rows [start, stop); None is the same ones.

    Args:
        place: the tensor's; if it is read whole, all rows are asked for.
        start: a multiple of `row_multiple`, as is `stop` unless it is the end.
        num_rows: of the tensor in the checkpoint.
    """
    if place.rows is not None:
        return indices(place.rows)
    return None if place.order is None else _ordered(place.order, start, stop, num_rows)


def _ordered(order: RowOrder, start: int, stop: int, num_rows: int) -> I64:
    if order.kind == "blocks":
        each = np.arange(num_rows, dtype=np.int64).reshape(-1, 3, order.head_dim)
        return each.transpose(1, 0, 2).reshape(-1)
    if order.rotary_dim == order.head_dim:
        return hf_rows(start, stop, order.head_dim)
    rows = np.arange(start, stop, dtype=np.int64)
    head, row = rows - rows % order.head_dim, rows % order.head_dim
    paired = row % 2 * (order.rotary_dim // 2) + row // 2
    return head + np.where(row < order.rotary_dim, paired, row)


def arranged(place: Place, found: NDArray[Scalar], start: int, num_rows: int) -> NDArray[Scalar]:
    """Rows of the checkpoint, from `start` on, as they stand in GGUF."""
    rows = source_rows(place, start, start + len(found), num_rows)
    if rows is not None:
        found = found[rows - start]
    if place.columns is not None:
        found = found[:, indices(place.columns)]
    if place.is_transposed:
        found = found.T
    return found if place.shape is None else found.reshape(place.shape)


def block_columns(place: Place, num_columns: int) -> I64 | None:
    """The checkpoint's blocks of columns at GGUF's blocks; None where those are not whole."""
    if num_columns % BLOCK or place.is_transposed:
        return None
    if place.columns is None:
        return np.arange(num_columns // BLOCK, dtype=np.int64)
    if any(each.start % BLOCK or each.stop % BLOCK or each.step != 1 for each in place.columns):
        return None
    return indices(tuple(range(each.start // BLOCK, each.stop // BLOCK) for each in place.columns))


def shape_of(place: Place, shape: tuple[int, ...]) -> tuple[int, ...]:
    """GGUF's, of a tensor of that shape in the checkpoint."""
    if place.shape is not None:
        return place.shape
    if place.is_transposed:
        return tuple(reversed(shape))
    rows = shape[0] if place.rows is None else sum(map(len, place.rows))
    columns = shape[1:] if place.columns is None else (sum(map(len, place.columns)),)
    return rows, *columns
