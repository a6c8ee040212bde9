import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mxconv.progress import silent
from mxconv.workers import Advance, ByteCounter, Workers, beside, result_of, uncounted, unless_failed

several = pytest.mark.parametrize("num_threads", [1, 2, 5])


def run(workers: Workers, work: Callable[[int], Any], count: int) -> list[Any]:
    def task(index: int, _: Advance) -> Any:
        return work(index)

    return workers.map(task, range(count))


def endless(_: int, advance: Advance) -> None:
    while True:
        advance(1)
        time.sleep(0.0005)


@several
def test_results_come_in_the_order_of_tasks(num_threads: int) -> None:
    assert run(Workers(num_threads), lambda index: index * index, 50) == [index * index for index in range(50)]
    assert run(Workers(num_threads), lambda index: index, 0) == []


@several
def test_the_first_error_stops_what_has_not_begun_and_the_lowest_index_is_raised(num_threads: int) -> None:
    begun: list[int] = []

    def work(index: int) -> None:
        begun.append(index)
        time.sleep(0.001 * (8 - index % 8))
        if index in (3, 4, 5):
            raise ValueError(str(index))

    with pytest.raises(ValueError, match=r"^3$"):
        run(Workers(num_threads), work, 1000)
    assert len(begun) < 30


def test_an_interrupt_ends_all_threads() -> None:
    begun: list[int] = []

    def work(index: int) -> None:
        begun.append(index)
        if index == 5:
            time.sleep(0.3)  # by now the main thread waits
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)

    before, handler = threading.active_count(), signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.disable()  # an interrupt in a callback of the collector is lost
    try:
        with pytest.raises(KeyboardInterrupt):
            run(Workers(3), work, 3000)
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, handler)
    assert threading.active_count() <= before and len(begun) < 3000


def test_pieces_are_done_while_a_block_runs() -> None:
    def square(number: int, advance: Advance) -> int:
        advance(1)
        return number * number

    counter = ByteCounter("hash", 3, silent)
    with beside(Workers(2), square, [1, 2, 3], counter) as squares:
        assert squares.result() == [1, 4, 9]
    assert counter.done == 3


def test_what_is_done_beside_a_block_stops_with_it() -> None:
    with pytest.raises(KeyError), beside(Workers(2), endless, [1, 2], uncounted):
        raise KeyError


def test_an_error_beside_a_block_stops_its_work() -> None:
    def fail(piece: int, _: Advance) -> int:
        raise ValueError(f"piece {piece}")

    with beside(Workers(2), fail, [1], uncounted) as failing, pytest.raises(ValueError, match="piece 1"):
        Workers(2).map(endless, range(2), unless_failed(failing, uncounted))
    with pytest.raises(ValueError, match="piece 1"):
        result_of(failing)


def test_bytes_of_all_threads_add_up() -> None:
    reports: list[int] = []
    counter = ByteCounter("encode", 1000, lambda stage, done, total: reports.append(done))
    run(Workers(4), lambda _: counter(10), 100)
    assert reports == list(range(10, 1001, 10))
