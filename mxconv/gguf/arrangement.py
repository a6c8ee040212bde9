"""Which rows and columns of a checkpoint's tensor stand at which of GGUF's.

RoPE rotates rows in pairs. Hugging Face checkpoints hold a head's first members of all pairs and then its second ones;
llama.cpp's `llama` models, and some others, hold the two members of a pair side by side:

    Hugging Face   row h * rotary_dim / 2 + j      member h of pair j
    GGUF           row 2 j + h

Source:
    `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I64
from mxconv.checkpoint.stacked import Axes
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.gguf.places import Ranges, TensorPlace

Scalar = TypeVar("Scalar", bound=np.generic)


def indices(ranges: Ranges) -> I64:
    """All numbers of some ranges, in their order."""
    return np.concatenate([np.arange(each.start, each.stop, each.step, dtype=np.int64) for each in ranges])


def source_rows(place: TensorPlace, start: int, stop: int, num_rows: int) -> I64 | None:
    """The checkpoint's rows, of `num_rows`, at GGUF's rows [start, stop); None is the same ones.

    Of a place that is read whole, all rows are asked for.
    """
    if place.rows is not None:
        return indices(place.rows)
    if (order := place.order) is None:
        return None
    rows = np.arange(num_rows, dtype=np.int64)
    if order.kind == "blocks":
        return rows.reshape(-1, 3, order.head_dim).transpose(1, 0, 2).reshape(-1)
    row = rows % order.head_dim
    paired = row % 2 * (order.rotary_dim // 2) + row // 2
    return (rows - row + np.where(row < order.rotary_dim, paired, row))[start:stop]


def arranged(place: TensorPlace, found: NDArray[Scalar], start: int, num_rows: int) -> NDArray[Scalar]:
    """Rows of the checkpoint, from `start` on, as they stand in GGUF."""
    rows = source_rows(place, start, start + len(found), num_rows)
    if rows is not None:
        found = found[rows - start]
    if place.columns is not None:
        found = found[:, indices(place.columns)]
    if place.is_transposed:
        found = found.T
    return found if place.shape is None else found.reshape(place.shape)


def block_columns(place: TensorPlace, num_columns: int) -> I64 | None:
    """The checkpoint's blocks of columns at GGUF's blocks; None where those are not whole."""
    if num_columns % BLOCK or place.is_transposed:
        return None
    if place.columns is None:
        return np.arange(num_columns // BLOCK, dtype=np.int64)
    if any(each.start % BLOCK or each.stop % BLOCK or each.step != 1 for each in place.columns):
        return None
    return indices(tuple(range(each.start // BLOCK, each.stop // BLOCK) for each in place.columns))


def shape_of(place: TensorPlace, shape: tuple[int, ...]) -> tuple[int, ...]:
    """GGUF's, of a tensor of that shape in the checkpoint."""
    if place.shape is not None:
        return place.shape
    if place.is_transposed:
        return tuple(reversed(shape))
    rows = shape[0] if place.rows is None else sum(map(len, place.rows))
    columns = shape[1:] if place.columns is None else (sum(map(len, place.columns)),)
    return rows, *columns


def own_shape(parts: Sequence[tuple[tuple[int, ...], TensorPlace]], axes: Axes | None) -> tuple[int, ...]:
    """The checkpoint's, of a tensor whose parts have these shapes in GGUF; `axes` are those of a stack of experts.
    Raises ValueError where parts of such shapes make no tensor; in words what is required."""
    shape, first = parts[0]
    if any(0 in found for found, _ in parts):
        raise ValueError("no dimension of 0 is allowed")
    if first.shape is not None and first.own_shape is not None:
        if shape != first.shape:
            raise ValueError(f"{list(first.shape)} is required")
        return first.own_shape
    is_three = axes is not None or first.expert is not None
    matrices = [found[1:] if is_three else found for found, _ in parts]
    allowed = {3} if is_three else {2} if first.is_transposed else {1, 2}
    if {len(found) for found, _ in parts} - allowed:
        raise ValueError(f"{' or '.join(map(str, sorted(allowed)))} dimensions are required")
    if len({(found[:1] if axes else (), *matrix[1:]) for (found, _), matrix in zip(parts, matrices, strict=True)}) > 1:
        raise ValueError("as many experts and in_features in all parts of a tensor are required")
    if first.expert is not None and first.expert >= shape[0]:
        raise ValueError(f"more than {first.expert} experts are required")
    for (_, place), found in zip(parts, matrices, strict=True):
        for ranges, size in ((place.rows, found[0]), (place.columns, found[-1])):
            if ranges is not None and sum(map(len, ranges)) != size:
                raise ValueError(f"{sum(map(len, ranges))} in the place of {size} are required")
        head = 0 if place.order is None else place.order.head_dim * (3 if place.order.kind == "blocks" else 1)
        if head and found[0] % head:
            raise ValueError(f"whole heads of {head} rows are required")
    rows = _extent([place.rows for _, place in parts], matrices[0][0])
    rest = matrices[0][1:] if first.columns is None else (_extent([place.columns for _, place in parts], 0),)
    matrix = (rows, *rest)
    if first.is_transposed or axes == "in_out":
        matrix = tuple(reversed(matrix))
    return matrix if axes is None else (shape[0], *matrix)


def _extent(parts: Sequence[Ranges | None], whole: int) -> int:
    """How many rows or columns parts make together."""
    return max((each.stop for ranges in parts for each in ranges or ()), default=whole)


def places_of_rows(place: TensorPlace, start: int, stop: int, num_rows: int) -> I64 | slice:
    """GGUF's rows at the checkpoint's rows [start, stop); -1 where those are in another part."""
    rows = source_rows(place, 0, num_rows, num_rows)
    if rows is None:
        return slice(start, stop)
    found = np.full(num_rows, -1, np.int64)
    found[rows] = np.arange(len(rows))
    return found[start:stop]
