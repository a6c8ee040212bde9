"""How requests arrive."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClosedLoop:
    """So many clients; each asks again as soon as it has its answer.

    Args:
        concurrency: requests at a time.
    """

    concurrency: int

    @property
    def label(self) -> str:
        return f"{self.concurrency} at a time"


@dataclass(frozen=True)
class Poisson:
    """Clients that know nothing of each other, nor of the server's load.

    Args:
        rate: requests a second, in the mean.
    """

    rate: float

    @property
    def label(self) -> str:
        return f"{self.rate:g} a second"

    def arrivals(self, num_requests: int) -> list[float]:
        """Seconds after the first one, ascending: the same ones each time."""
        gaps = np.random.default_rng(0).exponential(1 / self.rate, num_requests)
        return [float(moment) for moment in np.cumsum(gaps) - gaps[0]]


Load = ClosedLoop | Poisson
