"""Contenders in processes of their own that take turns on a machine: how they are started, called and timed."""

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from peer_engines import (
    WIDTHS,
    Contender,
)
from rich.console import Console
from rich.table import Table

from mxconv.bench.rates import ReadBandwidth, seconds_of, spread

PAUSE_SECONDS = 0.05  # longer than OpenMP, TBB and the native kernels spin before they sleep
BANDWIDTH_BYTES = 1 << 26
RATIO = "best peer / mxconv"
Plan = tuple[str, str, Callable[..., Any], tuple[Any, ...]]  # group, name, how to make it, of what


def serve(pipe: Connection, kind: Callable[..., Contender], arguments: Sequence[Any]) -> None:
    """A contender's process: (num_tokens, repetitions) in, seconds of each out; what `check` gives for none."""
    contender = kind(*arguments)
    pipe.send("ready")
    for num_tokens, repetitions in iter(pipe.recv, None):
        if repetitions == 0:
            pipe.send(contender.check(num_tokens))
            contender.rewind()
        else:
            contender.step(min(num_tokens, WIDTHS[-1]))  # wakes the threads
            contender.rewind()
            pipe.send([timed(contender, num_tokens) for _ in range(repetitions)])


def timed(contender: Contender, num_tokens: int) -> float:
    seconds = seconds_of(lambda: contender.step(num_tokens))
    contender.rewind()
    return seconds


@dataclass(frozen=True)
class Entry:
    """A contender and how to reach it."""

    group: str  # what compares with each other
    name: str
    pipe: Connection

    def ask(self, num_tokens: int, repetitions: int) -> Any:
        self.pipe.send((num_tokens, repetitions))
        return self.answer()

    def answer(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            sys.exit(f"{self.name}: its process ended; what it printed says why")


@contextlib.contextmanager
def running(plans: Sequence[Plan], answer: Callable[..., None] = serve) -> Iterator[list[Entry]]:
    """Each contender in a process of its own, which runs `answer`."""
    context = multiprocessing.get_context("spawn")
    processes, entries = [], []
    try:
        for group, name, kind, arguments in plans:
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=answer, args=(theirs, kind, arguments), daemon=True))
            processes[-1].start()
            theirs.close()  # so that an end of the process ends `recv`
            entries.append(Entry(group, name, ours))
            entries[-1].answer()  # it is ready
        yield entries
        for entry in entries:
            entry.pipe.send(None)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()


@dataclass(frozen=True)
class Row:
    """Medians over the rounds, milliseconds and GB/s. In a ratio's row, a quotient in place of milliseconds."""

    part: str
    group: str
    num_tokens: int
    contender: str
    milliseconds: float
    p10: float
    p90: float
    read_bandwidth: float | None = None  # beside it


def measure(
    part: str, entries: list[Entry], widths: Sequence[int], rounds: int, repetitions: int, bandwidth: ReadBandwidth
) -> list[Row]:
    seconds: dict[tuple[int, Entry], list[float]] = {(width, entry): [] for width in widths for entry in entries}
    rates: dict[tuple[int, Entry], list[float]] = {key: [] for key in seconds}
    for number in range(rounds):
        for width in widths:
            for place in range(len(entries)):
                entry = entries[(place + number) % len(entries)]  # nobody always follows the same one
                time.sleep(PAUSE_SECONDS)
                rates[width, entry].append(spread([bandwidth.sample(BANDWIDTH_BYTES) for _ in range(3)]).median)
                time.sleep(PAUSE_SECONDS)
                seconds[width, entry].append(spread(entry.ask(width, repetitions)).median)
    rows = []
    for group in dict.fromkeys(entry.group for entry in entries):
        ours, *peers = (entry for entry in entries if entry.group == group)
        for width in widths:
            for entry in (ours, *peers):
                times, rate = spread(seconds[width, entry]), spread(rates[width, entry]).median / 1e9
                milliseconds = (1e3 * times.median, 1e3 * times.p10, 1e3 * times.p90)
                rows.append(Row(part, group, width, entry.name, *milliseconds, rate))
            if peers:
                best = np.min([seconds[width, peer] for peer in peers], axis=0)
                ratio = spread(best / np.array(seconds[width, ours]))
                rows.append(Row(part, group, width, RATIO, ratio.median, ratio.p10, ratio.p90))
    return rows


def table_of(part: str, rows: Sequence[Row]) -> Table:
    table = Table(title=part)
    for name in ("weights", "tokens", "contender", "ms", "p10", "p90", "GB/s"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("weights", "contender") else "right")
    for row in rows:
        unit = " x" if row.contender == RATIO else ""
        figures = [f"{value:.2f}{unit}" for value in (row.milliseconds, row.p10, row.p90)]
        rate = "" if row.read_bandwidth is None else f"{row.read_bandwidth:.1f}"
        table.add_row(row.group, str(row.num_tokens), row.contender, *figures, rate, end_section=bool(unit))
    return table


def has(module: str, package: str, console: Console) -> bool:
    if find_spec(module.split(".")[0]) is None or find_spec(module) is None:
        console.print(f"{package}: not installed, left out; pip install {package}")
        return False
    console.print(f"{package} {version(package)}")
    return True


def say_how_llama_was_built(console: Console) -> None:
    import llama_cpp

    features = llama_cpp.llama_print_system_info().decode()
    console.print(features.strip(" |"))
    for name in ("REPACK", "LLAMAFILE"):
        if f"{name} = 1" not in features:
            console.print(f"llama.cpp was compiled without {name}: its times are not its best (see compare_peers.py)")
