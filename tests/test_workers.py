import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mxconv.workers import Advance, ByteCounter, Stream, Workers

several = pytest.mark.parametrize("num_threads", [1, 2, 5])


class Counting(Stream):
    """A stream of a number of pieces, none of which begins before `is_time`."""

    def __init__(self, num_pieces: int, is_time: Callable[[], bool] = lambda: True) -> None:
        self.left, self.is_time = num_pieces, is_time
        self.threads = 0
        self.most_threads = 0

    def is_ready(self) -> bool:
        return self.is_time()

    def report(self) -> None: ...

    def accept(self, report: object) -> None: ...

    def advance(self) -> bool:
        self.threads += 1
        self.most_threads = max(self.most_threads, self.threads)
        time.sleep(0.0005)
        self.left -= 1
        self.threads -= 1
        return self.left > 0


def run(workers: Workers, work: Callable[[int], Any], count: int) -> list[Any]:
    def task(index: int, _: Advance) -> Any:
        return work(index)

    return workers.map(task, range(count))


@several
def test_results_come_in_the_order_of_tasks(num_threads: int) -> None:
    assert run(Workers(num_threads), lambda index: index * index, 50) == [index * index for index in range(50)]
    assert run(Workers(num_threads), lambda index: index, 0) == []


@several
def test_streams_are_carried_on_beside_tasks_and_finished_at_the_end(num_threads: int) -> None:
    workers = Workers(num_threads)
    streams = [Counting(40), Counting(1), Counting(7)]
    for stream in streams:
        workers.add_stream(stream)
    assert run(workers, lambda index: index, 5) == list(range(5))
    workers.finish_streams()
    assert [stream.left for stream in streams] == [0, 0, 0]
    assert {stream.most_threads for stream in streams} == {1}
    workers.finish_streams()  # nothing is left


def test_one_thread_finishes_ready_streams_before_the_first_task() -> None:
    workers, stream = Workers(1), Counting(9)
    workers.add_stream(stream)
    assert run(workers, lambda _: stream.left, 2) == [0, 0]


def test_tasks_are_not_kept_waiting_by_streams_where_there_are_two_threads() -> None:
    workers = Workers(2)
    for _ in range(2):
        workers.add_stream(Counting(1 << 30))
    assert run(workers, lambda index: index, 20) == list(range(20))


def test_a_run_without_tasks_ends_at_once_whatever_streams_there_are() -> None:
    workers, stream = Workers(2), Counting(1 << 30)
    workers.add_stream(stream)
    assert run(workers, lambda index: index, 0) == []


@several
def test_a_stream_waits_for_what_tasks_make(num_threads: int) -> None:
    workers = Workers(num_threads)
    done: list[int] = []
    stream = Counting(6, lambda: len(done) >= 10)
    workers.add_stream(stream)

    def work(index: int) -> None:
        time.sleep(0.001)
        assert stream.left == 6 or len(done) >= 10
        done.append(index)

    run(workers, work, 10)
    workers.finish_streams()
    assert stream.left == 0


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


@several
def test_the_error_of_a_stream_stops_the_tasks(num_threads: int) -> None:
    class Failing(Counting):
        def advance(self) -> bool:
            raise KeyError("disk")

    workers = Workers(num_threads)
    workers.add_stream(Failing(1))
    begun: list[int] = []
    with pytest.raises(KeyError, match="disk"):
        run(workers, lambda index: (begun.append(index), time.sleep(0.001)), 1000)
    assert len(begun) < 500


def test_a_stream_that_can_never_go_on_is_a_defect_and_not_a_hang() -> None:
    workers = Workers(2)
    workers.add_stream(Counting(1, lambda: False))
    with pytest.raises(AssertionError, match="a stream waits for nothing"):
        workers.finish_streams()


def test_an_interrupt_ends_all_threads() -> None:
    def work(index: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.001)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run(Workers(3), work, 1000)
    assert threading.active_count() == before


def test_bytes_of_all_threads_add_up() -> None:
    reports: list[int] = []
    counter = ByteCounter("encode", 1000, lambda stage, done, total: reports.append(done))
    run(Workers(4), lambda _: counter(10), 100)
    assert reports == list(range(10, 1001, 10))
