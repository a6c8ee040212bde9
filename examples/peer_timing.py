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

from peer_engines import WIDTHS, Contender
from rich.console import Console
from rich.table import Table

from mxconv.bench.rates import ReadBandwidth, seconds_of, spread

PAUSE_SECONDS = 0.05  # longer than OpenMP, TBB and the native kernels spin before they sleep
BANDWIDTH_BYTES = 1 << 26
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
def running(plans: Sequence[Plan]) -> Iterator[list[Entry]]:
    """Each contender in a process of its own."""
    context = multiprocessing.get_context("spawn")
    processes, entries = [], []
    try:
        for group, name, kind, arguments in plans:
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=serve, args=(theirs, kind, arguments), daemon=True))
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
    """The median and the tenths around it, over the rounds. A ratio's row has quotients, and no bandwidth."""

    part: str
    group: str
    width: int  # tokens in one step, or sequences side by side
    name: str
    median: float
    p10: float
    p90: float
    read_bandwidth: float | None = None  # beside it, GB/s

    @classmethod
    def of(cls, part: str, group: str, width: int, name: str, values: Sequence[float], *others: float) -> "Row":
        found = spread(values)
        return cls(part, group, width, name, found.median, found.p10, found.p90, *others)


Turns = dict[tuple[int, Entry], list[Any]]


def take_turns(
    entries: Sequence[Entry], widths: Sequence[int], rounds: int, repetitions: int, bandwidth: ReadBandwidth
) -> tuple[Turns, Turns]:
    """What each contender answers, round by round and width by width, and the bytes a second read before each."""
    answers: Turns = {(width, entry): [] for width in widths for entry in entries}
    reads: Turns = {key: [] for key in answers}
    for number in range(rounds):
        for width in widths:
            for place in range(len(entries)):
                entry = entries[(place + number) % len(entries)]  # nobody always follows the same one
                time.sleep(PAUSE_SECONDS)
                reads[width, entry].append(spread([bandwidth.sample(BANDWIDTH_BYTES) for _ in range(3)]).median)
                time.sleep(PAUSE_SECONDS)
                answers[width, entry].append(entry.ask(width, repetitions))
    return answers, reads


def table_of(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    for name in ("weights", "at once", "contender", "ms", "p10", "p90", "GB/s"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("weights", "contender") else "right")
    for row in rows:
        is_ratio = row.read_bandwidth is None
        figures = [f"{value:.2f}{' x' if is_ratio else ''}" for value in (row.median, row.p10, row.p90)]
        beside = "" if row.read_bandwidth is None else f"{row.read_bandwidth:.1f}"
        table.add_row(row.group, str(row.width), row.name, *figures, beside, end_section=is_ratio)
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
