"""Stacks of experts to look at: each expert as a matrix, whichever way the source has it."""

from dataclasses import replace
from functools import cache

import numpy as np

from mxconv.arrays import F32, U16
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.report.weights import WeightTensor


def with_experts(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """A tensor whose experts are read from its own rows.

    Args:
        tensor: (experts, ...), whose rows are experts.
        stack: its shape and axes.
    """
    return replace(tensor, matrices=lambda: [_expert(tensor, stack, n) for n in range(stack.num_experts)])


def of_experts(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """A tensor that is put together from its experts: patterns and draft are theirs."""

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
