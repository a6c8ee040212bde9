"""The engines that `compare_peers.py` times, mxconv, llama.cpp and OpenVINO, and their turns on a machine.

Each engine is made in a process of its own, and called and timed there.
"""

import contextlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from mxconv.arrays import F32
from mxconv.bench.rates import ReadBandwidth, seconds_of, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache

THREADS = 2
WIDTHS, LATER_WIDTHS = (1, 4, 8), (1, 8)  # tokens in one step, and after a long prompt
LLAMA_LOG_ERROR = 4  # GGML_LOG_LEVEL_ERROR
GROUP = 32  # weights that share a scale in OpenVINO's INT4


class Contender(Protocol):
    def step(self, num_tokens: int) -> object:
        """The step that is timed."""

    def rewind(self) -> None:
        """Forget the tokens of a step, after it and outside its time."""

    def check(self, num_tokens: int) -> F32:
        """The logits, (num_tokens, vocab_size)."""


class MxconvModel:
    """A level of a package: tokens after `context` others, which stay in its cache. After none they are a prompt.

    Of a prompt only the last token's logits are wanted, here as in the other engines.
    """

    def __init__(self, package: Path, level: int, ids: list[int], context: int) -> None:
        self.loaded = LoadedPackage(package, num_threads=THREADS)
        decoder = self.loaded.levels[level].decoder
        assert decoder is not None  # only a look-up has none
        self.decoder, self.ids, self.context = decoder, ids, context
        self.cache = KVCache(decoder.config, len(ids))
        if context:
            self.decoder.forward(ids[:context], self.cache, last_only=True)

    def step(self, num_tokens: int) -> F32:
        ids = self.ids[self.context : self.context + num_tokens]
        return self.decoder.forward(ids, self.cache, last_only=self.context == 0)

    def rewind(self) -> None:
        self.cache.truncate(self.context)

    check = step


class LlamaCppModel:
    """A GGUF file in the same place; its flash attention, cache type and repacking are llama.cpp's own defaults."""

    def __init__(self, path: Path, ids: list[int], context: int) -> None:
        import llama_cpp

        self.library, self.ids, self.num_before = llama_cpp, ids, context
        self.log = llama_cpp.llama_log_callback(print_errors)  # kept, since C calls it
        llama_cpp.llama_log_set(self.log, None)
        of_model = llama_cpp.llama_model_default_params()
        of_model.n_gpu_layers, of_model.use_mmap = 0, True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), of_model)
        if self.model is None:
            raise RuntimeError(f"{path}: llama.cpp does not load it")
        self.num_logits = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch = len(ids), len(ids)
        parameters.n_ubatch = min(len(ids), parameters.n_ubatch)  # 512, its default, takes prompts fastest
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        if context:
            self._decode(0, context, last_only=True)

    def step(self, num_tokens: int) -> Any:
        return self._decode(self.num_before, num_tokens, last_only=self.num_before == 0)

    def rewind(self) -> None:
        """A recurrent state cannot be taken back in llama.cpp: the tokens before are evaluated again."""
        if not self.library.llama_memory_seq_rm(self.memory, 0, self.num_before, -1):
            self.library.llama_memory_clear(self.memory, True)
            self._decode(0, self.num_before, last_only=True)

    def check(self, num_tokens: int) -> F32:
        num_rows = num_tokens if self.num_before else 1
        return np.ctypeslib.as_array(self.step(num_tokens), (num_rows, self.num_logits)).copy()

    def _decode(self, position: int, num_tokens: int, last_only: bool) -> Any:
        self.batch.n_tokens = num_tokens
        for index in range(num_tokens):
            self.batch.token[index], self.batch.pos[index] = self.ids[position + index], position + index
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, 0
            self.batch.logits[index] = not last_only or index == num_tokens - 1
        if self.library.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        return self.library.llama_get_logits(self.context)  # waits until they are there


def print_errors(level: int, text: bytes, _: Any) -> None:
    if level == LLAMA_LOG_ERROR:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


class OpenVinoModel:
    """What optimum-intel exported, in the same place."""

    def __init__(self, folder: Path, ids: list[int], context: int) -> None:
        import openvino

        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1}
        is_int4 = folder.name.endswith("int4")
        settings |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP} if is_int4 else {"INFERENCE_PRECISION_HINT": "bf16"}
        compiled = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", settings)
        self.request, self.ids, self.context = compiled.create_infer_request(), ids, context
        if context:
            self._infer(0, context)
        self.states = [(state, state.state.data.copy()) for state in self.request.query_state() if context]
        self.tensor = openvino.Tensor

    def step(self, num_tokens: int) -> F32:
        return self._infer(self.context, num_tokens)

    def rewind(self) -> None:
        if not self.context:
            self.request.reset_state()
        for state, stored in self.states:
            state.state = self.tensor(stored)

    def check(self, num_tokens: int) -> F32:
        return self.step(num_tokens)[0 if self.context else -1 :].copy()

    def _infer(self, position: int, num_tokens: int) -> F32:
        end = position + num_tokens
        inputs = {
            "input_ids": np.array([self.ids[position:end]], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(position, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self.request.infer(inputs, share_inputs=True)
        logits: F32 = self.request.get_tensor("logits").data[0]
        return logits


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
            seconds = []
            for _ in range(repetitions):
                seconds.append(seconds_of(lambda: contender.step(num_tokens)))  # noqa: B023
                contender.rewind()
            pipe.send(seconds)


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
