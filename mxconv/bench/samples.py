"""What repeated measurements come to: the median, and how far they spread."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """The median of some samples, and the values that a tenth of them stay below and above."""

    median: float
    p10: float
    p90: float


def spread(samples: Sequence[float]) -> Spread:
    p10, median, p90 = (float(value) for value in np.percentile(np.asarray(samples), (10, 50, 90)))
    return Spread(median, p10, p90)
