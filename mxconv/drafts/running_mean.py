"""Running means: of seconds, of numbers and of chances."""

from dataclasses import dataclass

MEMORY = 0.98  # what is left in a round of the weight of all that was known before
MOST_UNUSUAL = 3.0  # times as long as usual; what takes longer was interrupted by somebody else
FEWEST_CHANCES, MOST_CHANCES = 4.0, 16.0  # samples that stay of a chance near 0 or 1, and of an even one


@dataclass
class RunningMean:
    """A running mean. What was seen long ago counts less, but as `least` samples: a single new one decides nothing."""

    value: float = 0.0
    weight: float = 0.0
    least: float = 1.0

    def fade(self, num_rounds: int = 1) -> None:
        self.weight = max(self.weight * MEMORY**num_rounds, min(self.weight, self.least))

    def add(self, total: float, count: float = 1.0) -> None:
        if count:
            self.value = (self.value * self.weight + total) / (self.weight + count)
            self.weight += count

    def add_seconds(self, seconds: float) -> None:
        self.add(min(seconds, MOST_UNUSUAL * self.value) if self.weight else seconds)


@dataclass
class Chance(RunningMean):
    """The running mean of what happens or not; few samples tell as much of what is rare or certain."""

    def fade(self, num_rounds: int = 1) -> None:
        self.least = max(FEWEST_CHANCES, MOST_CHANCES * 4 * self.value * (1 - self.value))
        super().fade(num_rounds)
