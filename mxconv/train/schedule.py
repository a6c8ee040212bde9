"""How a training goes: stages of so many steps, each with its windows and its learning rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mxconv.arrays import I32, I64
from mxconv.train.windows import Windows

WARM_UP = 0.05  # of a stage


@dataclass(frozen=True)
class Stage:
    """A part of a training.

    Args:
        name: for people.
        windows: what it reads.
        num_steps: at least one.
        batch_size: windows of a step, of all processes together.
        peak: the highest learning rate, after a warm-up over the first twentieth.
        last: what it falls to, along half a cosine.
    """

    name: str
    windows: Windows
    num_steps: int
    batch_size: int
    peak: float
    last: float

    @property
    def num_tokens(self) -> int:
        """Read in all steps, each as often as it is read."""
        return self.num_steps * self.batch_size * self.windows.length

    def learning_rate(self, step: int) -> float:
        """Of step `step` of this stage."""
        warm_up = max(round(WARM_UP * self.num_steps), 1)
        if step < warm_up:
            return self.peak * (step + 1) / warm_up
        share = (step - warm_up) / max(self.num_steps - warm_up, 1)
        return self.last + (self.peak - self.last) * (1 + math.cos(math.pi * share)) / 2

    def rows(self, step: int, seed: int) -> I32:
        """The windows of a step, (batch_size, length): every one once before any comes again, in an order of the seed.

        A step's windows depend on the seed and the step alone, so that a run that goes on is the same run.
        """
        count = len(self.windows.token_ids)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        chosen = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(places // count):
            order = _order(count, seed, int(epoch))
            inside = places // count == epoch
            chosen[inside] = order[places[inside] % count]
        rows: I32 = self.windows.token_ids[chosen]
        return rows


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> I64:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


def stage_of(stages: Sequence[Stage], step: int) -> tuple[Stage, int]:
    """The stage of a step of the whole training, and its number there."""
    for stage in stages:
        if step < stage.num_steps:
            return stage, step
        step -= stage.num_steps
    raise IndexError(step)
