"""Successive halving: all run a little, the better half runs on, until one is left or the time is over.

Everybody decodes the same prompts in turn, with plain decoding in between, and counts by the ratio to that plain
decode: a machine that slows down slows down both. Every rung takes the same time, however few are left in it, so that
most of the time goes to telling the best apart.

Source:
    Jamieson and Talwalkar (arXiv 1502.07943): successive halving with equal budgets a rung.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log, log2
from typing import Generic, TypeVar

Entrant = TypeVar("Entrant", bound=Hashable)
PLAIN_EVERY = 4  # runs behind each plain one


@dataclass
class Standing(Generic[Entrant]):
    """How one did: its speed over plain decoding, a ratio a prompt."""

    entrant: Entrant
    ratios: list[float] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Geometric mean; 0 before the first prompt."""
        return exp(sum(map(log, self.ratios)) / len(self.ratios)) if self.ratios else 0.0


def race(
    entrants: Sequence[Entrant],
    num_prompts: int,
    seconds_of: Callable[[Entrant | None, int], float],
    budget_seconds: float,
    clock: Callable[[], float],
) -> list[Standing[Entrant]]:
    """Find the fastest.

    At least one prompt is run, by the first one at least; those whose turn does not come in the first rung are out.

    Args:
        entrants: at least one; the more promising first.
        num_prompts: that there are; they are run in order, in each rung from where the last one ended.
        seconds_of: decode a prompt, by its number, with an entrant, or plainly with None.
        budget_seconds: after which no new run is begun.
        clock: seconds.

    Returns:
        Those that ran, the winner first; then by how far they came, and by speed.
    """
    alive = [Standing(entrant) for entrant in entrants]
    out: list[Standing[Entrant]] = []
    deadline = clock() + budget_seconds
    num_rungs = max(ceil(log2(len(alive))), 1)
    prompt = 0
    for rung in range(num_rungs):
        rung_end = clock() + (deadline - clock()) / (num_rungs - rung)
        for _ in range(num_prompts):
            ratios = _run(alive, prompt % num_prompts, seconds_of, lambda: clock() >= deadline)
            if len(ratios) < len(alive) and alive[0].ratios:
                break  # an unfinished prompt would be unfair
            for standing, ratio in zip(alive, ratios, strict=False):
                standing.ratios.append(ratio)
            alive = [standing for standing in alive if standing.ratios]
            prompt += 1
            if clock() >= rung_end:
                break
        alive.sort(key=lambda standing: -standing.speedup)
        half = ceil(len(alive) / 2)
        out[:0] = alive[half:]
        del alive[half:]
        if len(alive) == 1 or clock() >= deadline:
            break
    return alive + out


def _run(
    alive: Sequence[Standing[Entrant]],
    prompt: int,
    seconds_of: Callable[[Entrant | None, int], float],
    is_over: Callable[[], bool],
) -> list[float]:
    """Ratios of those who had their turn on a prompt, in order."""
    ratios: list[float] = []
    plain = 0.0
    for place, standing in enumerate(alive):
        if place and is_over():
            break
        if place % PLAIN_EVERY == 0:
            plain = seconds_of(None, prompt)
        ratios.append(plain / seconds_of(standing.entrant, prompt))
    return ratios
