"""The state of one layer, and what moves it on."""

from collections.abc import Callable
from dataclasses import dataclass

from mxconv.arrays import F32, float32_zeros
from mxconv.errors import ModelError


@dataclass(frozen=True, eq=False)
class LayerState:
    """The state of one layer; a step changes the arrays.

    Args:
        window: (kernel_size - 1, num_channels), what the convolution has seen, the oldest row first.
        memory: as the sizes say.
    """

    window: F32
    memory: F32

    def copy(self) -> "LayerState":
        return LayerState(self.window.copy(), self.memory.copy())

    def take(self, other: "LayerState") -> None:
        """Become another."""
        self.window[...] = other.window
        self.memory[...] = other.memory


Step = Callable[[LayerState, F32], F32]
"""A row's input, (input_size,): changes the state and returns what the mixer makes of it."""


def state_zeros(shape: tuple[int, ...]) -> F32:
    """An array for states or inputs. Raises ModelError where there is no memory for it."""
    try:
        return float32_zeros(shape)
    except (MemoryError, ValueError) as error:
        raise ModelError(
            f"recurrent state: no memory for an array of shape {shape} in float32; less is required. Use a smaller "
            "model, or fewer texts side by side."
        ) from error
