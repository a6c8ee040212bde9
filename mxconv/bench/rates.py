"""What the machine can do at this moment: read bandwidth, and multiply-adds a second, by the same threads.

Virtual machines change from second to second: two processors may be two cores, or one; memory may be shared with
others. So a rate is no constant. It is sampled beside each sample of what is measured, and only their ratio is kept.
"""

import time
from collections.abc import Callable

import numpy as np

from mxconv.kernels import _native

PIECE_BYTES = 1 << 18  # what Engine.read reads in one go
MIN_BYTES = 1 << 25  # of a sample of bandwidth: less is over before the threads have all begun
MIN_SECONDS = 0.002  # of a sample of arithmetic


class ReadBandwidth:
    """Reads through a large array, again and again from where it left off, so that no cache helps."""

    def __init__(self, engine: _native.Engine, num_bytes: int) -> None:
        """`num_bytes` should be several times the last-level cache."""
        self._engine = engine
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


class PeakArithmetic:
    """Multiply-adds of one form, as fast as registers allow."""

    def __init__(self, engine: _native.Engine, form: str) -> None:
        """`form` is what is multiplied: bf16, float or int8."""
        self._engine, self._form = engine, form
        self._iterations = 1000
        while min(seconds_of(self._run) for _ in range(3)) < MIN_SECONDS:  # the least: a busy machine interrupts
            self._iterations *= 2

    def sample(self) -> float:
        """Multiply-adds a second."""
        begin = time.perf_counter()
        count = self._engine.multiply_adds(self._form, self._iterations)
        return count / (time.perf_counter() - begin)

    def _run(self) -> None:
        self._engine.multiply_adds(self._form, self._iterations)


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return max(time.perf_counter() - begin, 1e-9)
