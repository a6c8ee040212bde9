"""A worker that is stopped: others do what it has, and what it says when it goes on counts no more."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster_workers import Make, by_ray, workers
from dying_workers import StopsOnce, stop_once
from packages import files_of, quantize

from mxconv.cluster.executor import RayExecutor
from mxconv.cluster.pace import LATE_SECONDS, LATE_TIMES, UNKNOWN_RATE, Pace


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.cluster.pace.LATE_SECONDS", 0.5)
    monkeypatch.setattr("mxconv.cluster.pace.UNKNOWN_RATE", 0.0)


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@contextlib.contextmanager
def stopped_by(flag: Path) -> Iterator[None]:
    """What is done meanwhile ends while the process that the flag names is stopped; then it goes on."""
    try:
        yield
        assert is_stopped(int(flag.read_text()))
    finally:
        if flag.exists():
            os.kill(int(flag.read_text()), signal.SIGCONT)


def wait_for_all(executor: RayExecutor) -> None:
    """Until nobody does anything that was sent before; what comes late is told to whoever sent it."""
    while executor._crew.has_calls:
        executor._crew.wait()


def test_a_piece_of_a_stopped_worker_is_done_by_another_and_counts_once(make: Make, tmp_path: Path) -> None:
    (tmp_path / "b").touch()  # nobody stops there
    (tmp_path / "c").touch()
    told: list[int] = []
    done: list[str] = []
    executor = make()
    with stopped_by(tmp_path / "a"):
        found = executor.map(stop_once, [tmp_path / name for name in "abc"], told.append, done.append)
    wait_for_all(executor)
    assert found == ["a", "b", "c"] and sorted(done) == ["a", "b", "c"] and told == [7, 7, 7]


def test_a_stream_of_a_stopped_worker_begins_again_elsewhere(make: Make, tmp_path: Path) -> None:
    executor, stream = make(), StopsOnce(tmp_path / "flag")
    executor.add_stream(stream)
    with stopped_by(tmp_path / "flag"):
        executor.finish_streams()
    assert stream.num_bytes == 10
    stream.accept(3)
    wait_for_all(executor)
    assert stream.num_bytes == 3  # the late report was dropped


def stop_a_worker(end: threading.Event, stopped: list[int]) -> None:
    """SIGSTOP a worker of the cluster while it encodes."""
    while not stopped and not end.wait(0.005):
        for pid, title in workers():
            if title.startswith("ray::Encode") and not stopped:
                os.kill(pid, signal.SIGSTOP)
                if any(other == pid and title.startswith("ray::Encode") for other, title in workers()):
                    stopped.append(pid)
                else:  # it had just ended that
                    os.kill(pid, signal.SIGCONT)


def test_a_conversion_ends_while_a_worker_is_stopped(make: Make, large: Path, tmp_path: Path) -> None:
    quantize(large, tmp_path / "threads", codec="bsfp", max_shard_bytes=20_000_000)
    end, stopped = threading.Event(), list[int]()
    stopper = threading.Thread(target=stop_a_worker, args=(end, stopped))
    stopper.start()
    try:
        by_ray(make, large, tmp_path / "ray", codec="bsfp", max_shard_bytes=20_000_000)
        assert stopped and is_stopped(stopped[0])
        assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")
    finally:
        end.set()
        stopper.join()
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    wait_for_all(make())
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "threads")  # nor did it do harm when it went on


def test_how_long_a_worker_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pace = Pace()
    assert pace.patience(10**6, 0) == LATE_SECONDS
    assert pace.patience(10**9, 0) == pytest.approx(LATE_TIMES * UNKNOWN_RATE * 10**9)
    for seconds in (1, 90, 2):
        pace.note(10**8, seconds)
    assert pace.patience(10**9, 0) == pytest.approx(LATE_TIMES * 20)  # by the median
    assert pace.patience(10**9, 2) == pytest.approx(4 * LATE_TIMES * 20)  # two were late before
