"""What a run did, per level: the numbers behind every acceptance rate and speed-up."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class LevelStatistics:
    """Counts of one level over a run. `num_proposed` and `num_accepted` are of tokens shown to the level above."""

    name: str
    num_forwards: int = 0
    num_proposed: int = 0
    num_accepted: int = 0
    seconds: float = 0.0  # in this level's own forward passes

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed; None where nothing was proposed (the target, or an unused level)."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Count and time one forward pass."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begin
            self.num_forwards += 1


@dataclass(frozen=True)
class TraceEntry:
    """One level's part in one round of the target."""

    round: int
    level: str
    num_proposed: int
    num_accepted: int
    num_forwards: int
    seconds: float


@dataclass
class Trace:
    """Every round of a run, cut into per-level differences."""

    statistics: list[LevelStatistics]
    entries: list[TraceEntry] = field(default_factory=list)
    num_rounds: int = 0
    _before: list[tuple[int, int, int, float]] = field(default_factory=list)

    def begin_round(self) -> None:
        self._before = [_counts(level) for level in self.statistics]

    def end_round(self) -> None:
        for level, before in zip(self.statistics, self._before, strict=True):
            proposed, accepted, forwards, seconds = (
                now - then for now, then in zip(_counts(level), before, strict=True)
            )
            self.entries.append(
                TraceEntry(self.num_rounds, level.name, int(proposed), int(accepted), int(forwards), seconds)
            )
        self.num_rounds += 1


def _counts(level: LevelStatistics) -> tuple[int, int, int, float]:
    return level.num_proposed, level.num_accepted, level.num_forwards, level.seconds
