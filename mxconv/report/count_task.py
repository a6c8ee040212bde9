"""A tensor's figures as work for any process."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from mxconv.report.statistics import Statistics, tensor_statistics
from mxconv.report.weights import Weights, WeightTensor
from mxconv.workers import Advance


class CountTensor:
    """A task: count the tensor of a name, or the expert of a stack, `NAME[3]`."""

    def __init__(self, weights: Weights, tensors: Sequence[WeightTensor] = ()) -> None:
        """Of what is open.

        Args:
            weights: all.
            tensors: those that were looked up already.
        """
        self._weights = weights
        self._tensors = {tensor.name: tensor for tensor in (*weights.tensors, *tensors)}

    def __reduce__(self) -> tuple[object, ...]:
        """In another process what is counted is opened again; it stays open as long as the task is kept."""
        assert self._weights.reopen is not None
        return _reopened, (self._weights.reopen,)

    def __call__(self, name: str, advance: Advance) -> Statistics:
        if name not in self._tensors:
            whole = self._tensors[name.rpartition("[")[0]]
            assert whole.matrices is not None
            self._tensors |= {tensor.name: tensor for tensor in whole.matrices()}
        return tensor_statistics(self._tensors[name], advance)


class _Kept(CountTensor):
    """Holds what it opened."""

    def __init__(self, opened: AbstractContextManager[Weights]) -> None:
        super().__init__(opened.__enter__())
        self._opened = opened


def _reopened(reopen: Callable[[], AbstractContextManager[Weights]]) -> CountTensor:
    return _Kept(reopen())
