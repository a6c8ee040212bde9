"""Rates of this machine at this moment: read bandwidth, and multiply-adds a second, by the same threads; and medians.

Virtual machines change from second to second: two processors may be two cores, or one; memory may be shared with
others. So a rate is no constant: it is sampled beside each sample of what is measured, and their ratio is kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mxconv.bench.machine import last_level_cache_bytes

if TYPE_CHECKING:  # what measures a GPU needs no native kernels
    from mxconv.kernels import _native

Result = TypeVar("Result")
BANDWIDTH_CACHES = 8  # the array that is read, in last-level caches
BANDWIDTH_BYTES, BANDWIDTH_SAMPLES = 1 << 26, 4  # read before some work, and as often after it
PIECE_BYTES = 1 << 18  # what Engine.read reads in one go
MIN_BYTES = 1 << 25  # of a sample of bandwidth: less is over before all threads have begun
MIN_SECONDS = 0.002  # of a sample of arithmetic


@dataclass(frozen=True)
class Spread:
    """The median of some samples, and the values that a tenth of them stay below and above."""

    median: float
    p10: float
    p90: float


def spread(samples: Sequence[float]) -> Spread:
    """The median and the tenths around it."""
    p10, median, p90 = (float(value) for value in np.percentile(np.asarray(samples), (10, 50, 90)))
    return Spread(median, p10, p90)


@dataclass(frozen=True, kw_only=True)
class ReadTiming:
    """Figures of work that reads weights. `seconds` is the median, `_p10` and `_p90` its spread."""

    num_bytes: int  # of weights that are read once
    seconds: float
    seconds_p10: float
    seconds_p90: float
    num_samples: int
    gigabytes_per_second: float
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float


def read_timing(num_bytes: int, samples: Sequence[tuple[float, float]]) -> ReadTiming:
    """Medians of samples, and of the ratios within each.

    Args:
        num_bytes: of weights that are read.
        samples: seconds, and the bytes a second that were read beside them.
    """
    seconds = spread([each for each, _ in samples])
    return ReadTiming(
        num_bytes=num_bytes,
        seconds=seconds.median,
        seconds_p10=seconds.p10,
        seconds_p90=seconds.p90,
        num_samples=len(samples),
        gigabytes_per_second=num_bytes / seconds.median / 1e9,
        read_bandwidth=spread([rate for _, rate in samples]).median / 1e9,
        fraction_of_bandwidth=spread([num_bytes / each / rate for each, rate in samples]).median,
    )


class ReadBandwidth:
    """Reads through a large array, again and again from where it left off, so that no cache helps."""

    def __init__(self, engine: "_native.Engine", num_bytes: int | None = None) -> None:
        """`num_bytes` should be several times the last-level cache; None takes eight times."""
        self._engine = engine
        num_bytes = BANDWIDTH_CACHES * last_level_cache_bytes() if num_bytes is None else num_bytes
        self._bytes = np.ones(max(num_bytes // PIECE_BYTES, 1) * PIECE_BYTES, np.uint8)
        self._next = 0

    def sample(self, num_bytes: int) -> float:
        """Bytes a second, of reading about that many bytes, at least 32 MiB, at most what the array has."""
        length = min(-(-max(num_bytes, MIN_BYTES) // PIECE_BYTES) * PIECE_BYTES, len(self._bytes))
        if self._next + length > len(self._bytes):
            self._next = 0
        part = self._bytes[self._next : self._next + length]
        self._next += length
        return length / seconds_of(lambda: self._engine.read(part))

    def beside(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """The result of some work, and the median rate before and after it in bytes a second."""
        before = [self.sample(BANDWIDTH_BYTES) for _ in range(BANDWIDTH_SAMPLES)]
        result = work()
        return result, spread(before + [self.sample(BANDWIDTH_BYTES) for _ in range(BANDWIDTH_SAMPLES)]).median


class PeakArithmetic:
    """Multiply-adds of one form, as fast as registers allow."""

    def __init__(self, engine: "_native.Engine", form: str) -> None:
        """`form` is what is multiplied: bf16, float or int8."""
        self._engine, self._form = engine, form
        self._iterations = 1000
        while min(seconds_of(self._run) for _ in range(3)) < MIN_SECONDS:  # the least: a busy machine interrupts
            self._iterations *= 2

    def sample(self) -> float:
        """Multiply-adds a second."""
        begin = time.perf_counter()
        count = self._run()
        return count / (time.perf_counter() - begin)

    def _run(self) -> int:
        return self._engine.multiply_adds(self._form, self._iterations)


def seconds_of(work: Callable[[], object]) -> float:
    """How long some work takes; at least a nanosecond."""
    begin = time.perf_counter()
    work()
    return max(time.perf_counter() - begin, 1e-9)
