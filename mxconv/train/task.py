"""What is trained: a model, its loss on some windows, and what becomes of it."""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from mxconv.train.windows import Windows


class Task(Protocol):
    """One kind of draft."""

    @property
    def parts(self) -> list[str]:
        """Names of the losses, in their order."""
        ...

    def model(self) -> nn.Module:
        """Freshly initialized; the random numbers are torch's."""
        ...

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """(len(parts),): of one batch, in nats a token; their mean is minimized.

        Args:
            model: what `model` made, perhaps wrapped.
            token_ids: (batch, length) int64 on the device.
            windows: where they are from.
        """
        ...

    def flops_per_token(self, model: nn.Module) -> float:
        """Of a training step of what `model` made, the target's pass included."""
        ...

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Into an empty folder: the trained draft, as others load it."""
        ...
