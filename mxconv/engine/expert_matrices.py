"""The matrices of a layer's experts, whether a checkpoint stacks them or has a tensor for each."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mxconv.arch.mixture import Experts
from mxconv.arrays import F32
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class ExpertMatrices:
    """Matrices of an expert by its number, made when they are first asked for.

    Args:
        up: gate and up in one (2 * size, hidden_size), or None where `gate` and `up` are apart.
    """

    parts: Experts
    both: Callable[[int], Matrix] | None
    gate: Callable[[int], Matrix] | None
    up: Callable[[int], Matrix] | None
    back: Callable[[int], Matrix]
    both_bias: Matrix | None
    back_bias: Matrix | None
    num_weights: int  # of one expert

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Experts, sizes: tuple[int, int], prefix: str) -> "ExpertMatrices":
        """Find them; `sizes` are the number of experts and the hidden size.

        Raises:
            ModelError: one is missing or has another shape.
        """
        count, hidden = sizes
        first, second = (prefix + name for name in parts.stacked)
        num_weights = 3 * parts.size * hidden
        if parts.apart is None or weights.has_stack(first):
            both = weights.stack(first, (count, 2 * parts.size, hidden))
            back = weights.stack(second, (count, hidden, parts.size))
            both_bias = weights.matrix(f"{first}_bias", count, 2 * parts.size) if parts.has_bias else None
            back_bias = weights.matrix(f"{second}_bias", count, hidden) if parts.has_bias else None
            return cls(parts, both.matrix, None, None, back.matrix, both_bias, back_bias, num_weights)
        shapes = (parts.size, hidden), (parts.size, hidden), (hidden, parts.size)
        gate, up, down = (
            [weights.matrix(f"{prefix}{name.format(expert)}.weight", *shape) for expert in range(count)].__getitem__
            for name, shape in zip(parts.apart, shapes, strict=True)
        )
        return cls(parts, None, gate, up, down, None, None, num_weights)

    def gates_and_ups(self, expert: int, x: F32) -> tuple[F32, F32]:
        """Of rows (num_tokens, hidden_size): two (num_tokens, size)."""
        if self.both is None:
            assert self.gate is not None and self.up is not None
            return self.gate(expert).multiply(x), self.up(expert).multiply(x)
        rows = _with_bias(self.both(expert).multiply(x), self.both_bias, expert)
        if self.parts.is_interleaved:
            return rows[:, ::2].copy(), rows[:, 1::2].copy()
        return rows[:, : self.parts.size].copy(), rows[:, self.parts.size :].copy()

    def down(self, expert: int, x: F32) -> F32:
        """Of rows (num_tokens, size): (num_tokens, hidden_size)."""
        return _with_bias(self.back(expert).multiply(x), self.back_bias, expert)


def _with_bias(y: F32, biases: Matrix | None, expert: int) -> F32:
    return y if biases is None else y + biases.rows(np.array([expert]))[0]
