"""Matrices that record what they multiply, as X^T X: what a calibration learns from a layer.

recorder = InputRecorder()
layer = Layer(CheckedWeights(recorder.weights(exact, prefix), name), config, index)  # then evaluate texts
recorder.sums["model.layers.0.mlp.up_proj.weight", None].products
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64
from mxconv.engine.weights import ExpertStack, ModelWeights
from mxconv.kernels.matrix import Matrix

CHUNK_ROWS = 1024  # that become float64 at a time
Key = tuple[str, int | None]
"""A tensor by the decoder's name, and of a stack the expert."""


class InputSum:
    """X^T X of all rows that matrices with one input multiplied; `products` is (in_features, in_features) float64."""

    def __init__(self, num_inputs: int) -> None:
        self.products: F64 = np.zeros((num_inputs, num_inputs))
        self.num_rows = 0
        self.last: F32 | None = None  # the rows that were added last: another matrix may multiply the same

    def add(self, x: F32) -> None:
        """Add rows, (num_tokens, in_features), once."""
        if x is self.last:
            return
        for start in range(0, len(x), CHUNK_ROWS):
            rows = x[start : start + CHUNK_ROWS].astype(np.float64)
            self.products += rows.T @ rows
        self.num_rows += len(x)
        self.last = x


class InputRecorder:
    """The sums of a layer's matrices.

    Matrices that multiply the very same array, as q, k and v, or gate and up, share a sum. `turned` names those that
    a layer multiplies transposed: their stored rows are its inputs.
    """

    def __init__(self) -> None:
        self.sums: dict[Key, InputSum] = {}
        self.turned: set[Key] = set()
        self._latest: InputSum | None = None

    def weights(self, exact: ModelWeights, prefix: str) -> ModelWeights:
        """The same weights, of which the matrices whose names begin so record their inputs."""
        matrices = {
            name: RecordedMatrix((name, None), matrix, self)
            for name, matrix in exact.matrices.items()
            if name.startswith(prefix)
        }
        stacks = {name: self._stack(name, stack) for name, stack in exact.stacks.items() if name.startswith(prefix)}
        return replace(exact, matrices={**exact.matrices, **matrices}, stacks={**exact.stacks, **stacks})

    def take(self, key: Key, x: F32, is_turned: bool) -> None:
        """Record that a matrix multiplies rows, (num_tokens, in_features)."""
        if key not in self.sums:
            is_shared = self._latest is not None and self._latest.last is x
            self.sums[key] = self._latest if self._latest is not None and is_shared else InputSum(x.shape[1])
            if is_turned:
                self.turned.add(key)
        self._latest = self.sums[key]
        self._latest.add(x)

    def _stack(self, name: str, stack: ExpertStack) -> ExpertStack:
        return ExpertStack(stack.shape, lambda expert: RecordedMatrix((name, expert), stack.matrix(expert), self))


@dataclass(frozen=True, eq=False)
class RecordedMatrix:
    """Implements `Matrix` by another one."""

    key: Key
    matrix: Matrix
    recorder: InputRecorder
    is_turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def multiply(self, x: F32) -> F32:
        self.recorder.take(self.key, x, self.is_turned)
        return self.matrix.multiply(x)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.matrix.rows(indices)

    def turned(self) -> "RecordedMatrix":
        return replace(self, matrix=self.matrix.turned(), is_turned=not self.is_turned)
