"""Which rows of a checkpoint's tensor stand at which of GGUF's."""

import numpy as np

from mxconv.arrays import I64
from mxconv.checkpoint.gguf.rope_rows import hf_rows
from mxconv.interop.gguf.places import RowOrder


def source_rows(order: RowOrder, start: int, stop: int, num_rows: int) -> I64:
    """The checkpoint's rows at GGUF's rows [start, stop), whole heads; of order "blocks" all rows.

    Args:
        order: which.
        start: a multiple of `row_multiple`, as is `stop` unless it is the end.
        num_rows: of the tensor.
    """
    if order.kind == "blocks":
        each = np.arange(num_rows, dtype=np.int64).reshape(-1, 3, order.head_dim)
        return each.transpose(1, 0, 2).reshape(-1)
    if order.rotary_dim == order.head_dim:
        return hf_rows(start, stop, order.head_dim)
    rows = np.arange(start, stop, dtype=np.int64)
    head, row = rows - rows % order.head_dim, rows % order.head_dim
    paired = row % 2 * (order.rotary_dim // 2) + row // 2
    return head + np.where(row < order.rotary_dim, paired, row)


def row_multiple(order: RowOrder | None, num_rows: int) -> int:
    """Rows that must be read together."""
    if order is None:
        return 1
    return num_rows if order.kind == "blocks" else order.head_dim
