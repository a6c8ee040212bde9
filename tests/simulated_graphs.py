"""CUDA graphs without a GPU: what torch and the Triton interpreter are asked for is recorded, and done again.

As in a graph, a replay runs none of the model's Python: tensors lie where they lay, numbers are those of the recording,
and whatever needs a tensor's value on the host cannot be recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from mxconv.gpu.recorded_call import NUM_WARMUPS

WAITING = {"_local_scalar_dense", "nonzero", "unique_dim", "_unique2", "masked_select"}
Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[torch.Tensor]]


class SimulatedCall:
    """Implements `RecordedCall` on the CPU. `made` counts them."""

    made = 0

    def __init__(self, device: torch.device, call: Callable[[], Any], pool: Any = None) -> None:
        for _ in range(NUM_WARMUPS):
            call()
        self._steps: list[Step] = []
        with _Recorder(self._steps):
            self.result = call()
        SimulatedCall.made += 1

    def replay(self) -> None:
        for function, args, kwargs, known in self._steps:
            found = [leaf for leaf in tree_leaves(function(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
            for there, new in zip(known, found, strict=True):
                if there.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    there.copy_(new)


class _Recorder(TorchDispatchMode):
    """Appends what torch does, and launches of interpreted kernels among it."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self._steps = steps

    def __enter__(self) -> "_Recorder":
        self._launch = _launches(self._steps)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._launch()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITING:
            raise RuntimeError(f"{func}: waits for the device")
        out = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self._steps.append((func, args, kwargs or {}, leaves))
        return out


def _launches(steps: list[Step]) -> Callable[[], None]:
    """Record launches too; the result ends that."""
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:
        return lambda: None
    launch = GridExecutor.__call__

    def recorded(executor: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():  # what the interpreter itself does with torch
            launch(executor, *args, **kwargs)
        steps.append((lambda *a, **k: launch(executor, *a, **k), args, kwargs, []))

    GridExecutor.__call__ = recorded

    def end() -> None:
        GridExecutor.__call__ = launch

    return end
