"""Hidden states that a pass computes between its layers, for drafts that read the target."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mxconv.arrays import F32
from mxconv.errors import ModelError


@dataclass(frozen=True)
class Reads:
    """The states that a draft reads of the model above it."""

    layers: tuple[int, ...] = ()  # ascending, numbered as `States` has them
    normed_last: bool = False  # whether it reads the state after the final norm too

    @property
    def num_states(self) -> int:
        return len(self.layers) + self.normed_last

    def __or__(self, other: "Reads") -> "Reads":
        """The states that two drafts read together."""
        return Reads(tuple(sorted({*self.layers, *other.layers})), self.normed_last or other.normed_last)

    def places(self, within: "Reads") -> list[int]:
        """Where these states lie among those of a reader of these and perhaps others."""
        places = [within.layers.index(layer) for layer in self.layers]
        return [*places, within.num_states - 1] if self.normed_last else places


class States:
    """Names states of the residual stream, and receives them from each pass, for all its rows.

    `values` is (num_states, num_rows, hidden_size) float32, the states in the order of `layers` and then the normed
    one: of the last pass, None before the first. Each pass makes an array of its own. A row's states depend on its path
    alone, bit for bit.

    Args:
        layers: ascending. 0 is the embedding, i what layer i - 1 gives: transformers' `hidden_states` but for the last
            layer's, which is not normed here.
        normed_last: whether the state after the final norm, from which logits are made, is wanted too.

    Raises:
        ModelError: no state is named, or layers that do not ascend from 0 on.
    """

    def __init__(self, layers: Sequence[int] = (), normed_last: bool = False) -> None:
        if not layers and not normed_last:
            raise ModelError("states: none is named; a layer or the normed state is required. Name one, or read none.")
        if any(layer >= later for layer, later in pairwise([-1, *layers])):
            raise ModelError(f"states of layers {list(layers)}; ascending numbers from 0 on are required. Sort them.")
        self.layers = tuple(layers)
        self.normed_last = normed_last
        self.values: F32 | None = None

    def check(self, num_layers: int, name: str) -> None:
        """Raises ModelError where a layer is named that a model of `num_layers` does not have."""
        if (last := max(self.layers, default=0)) > num_layers:
            raise ModelError(
                f"{name}: the state of layer {last}; 0 (the embedding) to {num_layers} (what the last layer gives) are "
                "required. Name states that this model has."
            )

    def room(self, num_layers: int, num_rows: int, hidden_size: int) -> "StateRoom":
        """For the states of one pass through a model of `num_layers`."""
        stages = [*self.layers, *([num_layers + 1] if self.normed_last else [])]
        return StateRoom(stages, np.empty((len(stages), num_rows, hidden_size), np.float32))


@dataclass(frozen=True, eq=False)
class StateRoom:
    """The states of one sequence while a pass computes them."""

    stages: list[int]  # of each a layer that it goes into, or their number for what the last gives, + 1 for the normed
    values: F32  # (len(stages), num_rows, hidden_size), to be filled

    def take(self, stage: int, x: F32) -> None:
        """Copy the state at a stage if it is wanted."""
        if stage in self.stages:
            self.values[self.stages.index(stage)] = x
