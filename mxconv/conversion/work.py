"""Tensors side by side, and their bytes counted as they pass."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from mxconv.progress import Progress

Result = TypeVar("Result")


class ByteCounter:
    """Adds up bytes from several threads and reports the sum."""

    def __init__(self, stage: str, total: int, progress: Progress) -> None:
        self.stage, self.total, self.progress = stage, total, progress
        self.done = 0
        self._lock = Lock()

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self.done += num_bytes
            self.progress(self.stage, self.done, self.total)


def in_threads(work: Callable[[int], Result], count: int, num_threads: int) -> list[Result]:
    """Call work(0), ..., work(count - 1); the first error stops what has not begun."""
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(work, index) for index in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
