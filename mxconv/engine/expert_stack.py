"""The experts that one tensor holds, each a matrix that is made when a row first chooses it."""

from collections.abc import Callable

from mxconv.kernels.matrix import Matrix


class ExpertStack:
    """Experts of a stack, by number.

    Args:
        shape: (num_experts, out_features, in_features).
        make: the matrix of an expert. It is called once for each that is asked for, so that memory-mapped weights of
            the others are never read.
    """

    def __init__(self, shape: tuple[int, int, int], make: Callable[[int], Matrix]) -> None:
        self.shape = shape
        self._make = make
        self._made: dict[int, Matrix] = {}

    def matrix(self, expert: int) -> Matrix:
        """(out_features, in_features)."""
        if expert not in self._made:
            self._made[expert] = self._make(expert)
        return self._made[expert]
