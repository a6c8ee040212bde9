"""More tokens than the kernels take: rows of weights go through a scratch of bounded size, and torch multiplies."""

from collections.abc import Callable

import torch

from mxconv.kernels.triton.launch import ROWS

SCRATCH_BYTES = 64 << 20


def panel_rows(num_columns: int) -> int:
    """Rows of 16-bit weights that the scratch holds: a multiple of 64."""
    return max(SCRATCH_BYTES // (2 * num_columns * int(ROWS.value)), 1) * int(ROWS.value)


def multiply_by_panels(x: torch.Tensor, num_rows: int, weight_rows: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    """x W^T by `torch.matmul`, whose bits may depend on how many tokens there are.

    Args:
        x: (tokens, columns) in the weights' dtype.
        num_rows: of W.
        weight_rows: (first row, number of rows) to these rows of W, in 16 bits.

    Returns:
        (tokens, rows) float32, rounded to 16 bits by torch.
    """
    out = torch.empty((len(x), num_rows), dtype=torch.float32, device=x.device)
    step = panel_rows(x.shape[1])
    for first in range(0, num_rows, step):
        stop = min(first + step, num_rows)
        out[:, first:stop] = x @ weight_rows(first, stop - first).T
    return out
