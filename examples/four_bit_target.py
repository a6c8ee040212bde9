"""The 4-bit level as what is decoded: plainly, with drafts below it, and by llama.cpp with the same weights, in turns.

    python examples/four_bit_target.py PACKAGE PROMPTS.jsonl [DRAFT ...] [--gguf FILE] [--num-prompts N] [--json]

PACKAGE is an MXFP4 one. A DRAFT is one of its levels by name, or what `--draft` takes: token-recycling,
checkpoint:SMALL. With drafts, lengths and trees are `auto`, which goes on learning from prompt to prompt. llama.cpp
decodes the MXFP4 level that `mxconv export --to gguf` writes, into --gguf where it is to be kept.

Every contender lives in a process of its own with two threads and gets the same token ids; each takes the likeliest
token 64 times (--num-tokens), whatever ends a text. The prompts come one after the other, and for each of them all
contenders take their turns, a sample of the machine's read bandwidth before each, and a pause before that and behind
it. A ratio is of one prompt's seconds; the table has the geometric mean. Tokens with drafts must be those without, or
it ends with an error; llama.cpp rounds otherwise, so that its texts may part from ours, and how many are equal is
printed.

Run it on a machine that does nothing else, with llama.cpp compiled for its processor (compare_peers.py says how).
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from installed_peers import has, say_how_llama_was_built
from peer_engines import THREADS, LlamaCppModel
from peer_timing import BANDWIDTH_BYTES, PAUSE_SECONDS
from rich.console import Console
from rich.table import Table

from mxconv.bench.decode_result import geomean
from mxconv.bench.engine import implementations
from mxconv.bench.forwards import BANDWIDTH_CACHES, CONTEXT
from mxconv.bench.machine import last_level_cache_bytes, this_machine
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.interop.gguf_export import export_gguf
from mxconv.kernels import _native
from mxconv.package.manifest import read_manifest
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts
from mxconv.text.chat import encode_prompts
from mxconv.text.tokenizer import Tokenizer

LEVEL = "mxfp4"
WARM_TOKENS = 8
PLAIN, DRAFTED, PEER = "mxconv, plain", "mxconv, drafts", "llama.cpp"


@dataclass(frozen=True)
class Text:
    """What a contender made of one prompt."""

    token_ids: list[int]
    seconds: float
    prompt_seconds: float  # of these, until the first token
    num_rounds: int


class MxconvText:
    def __init__(self, package: Path, drafts: Sequence[str]) -> None:
        known = {level.name for level in read_manifest(package).levels}
        levels = [LEVEL, *(draft for draft in drafts if draft in known)]
        specs = [parse_draft(draft) for draft in drafts if draft not in known]
        self.loaded = LoadedPackage(package, levels, num_threads=THREADS, drafts=specs)
        self.hierarchy = Hierarchy(self.loaded.levels, "auto" if drafts else None)

    def decode(self, prompt: list[int], num_tokens: int) -> Text:
        done = self.hierarchy.generate(prompt, num_tokens)
        return Text(done.token_ids, done.seconds, done.prompt_seconds, done.trace.num_rounds)


class LlamaCppText(LlamaCppModel):
    def __init__(self, path: Path, longest: int) -> None:
        super().__init__(path, [0] * max(longest, CONTEXT), CONTEXT)

    def decode(self, prompt: list[int], num_tokens: int) -> Text:
        self.library.llama_memory_seq_rm(self.memory, 0, 0, -1)
        self.ids, begin = list(prompt), time.perf_counter()
        self.ids.append(self._likeliest(0, len(prompt)))
        first = time.perf_counter()
        while len(self.ids) < len(prompt) + num_tokens:
            self.ids.append(self._likeliest(len(self.ids) - 1, 1))
        seconds = time.perf_counter() - begin
        return Text(self.ids[len(prompt) :], seconds, first - begin, num_tokens)

    def _likeliest(self, position: int, num_new: int) -> int:
        logits = self._decode(position, num_new, last_only=True)
        return int(np.ctypeslib.as_array(logits, (self.num_logits,)).argmax())


def serve(pipe: Connection, kind: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """A contender's process: prompts and lengths in, texts out."""
    contender = kind(*arguments)
    pipe.send("ready")
    for prompt, num_tokens in iter(pipe.recv, None):
        pipe.send(contender.decode(prompt, num_tokens))


def answer(pipe: Connection, name: str) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        sys.exit(f"{name}: its process ended; what it printed says why")


def start(plans: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], stack: ExitStack) -> dict[str, Connection]:
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name, (kind, arguments) in plans.items():
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, kind, arguments), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        theirs.close()  # so that an end of the process ends `recv`
        pipes[name] = ours
        answer(ours, name)  # it is ready
    return pipes


def measure(
    pipes: dict[str, Connection], prompts: list[list[int]], num_tokens: int, bandwidth: ReadBandwidth
) -> tuple[dict[str, list[Text]], list[float]]:
    """Texts of every contender, a prompt each, and the bandwidth before each of them."""
    found: dict[str, list[Text]] = {name: [] for name in pipes}
    rates, names = [], list(pipes)
    for number, prompt in enumerate(prompts):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]  # nobody always follows the same one
            time.sleep(PAUSE_SECONDS)
            rates.append(spread([bandwidth.sample(BANDWIDTH_BYTES) for _ in range(3)]).median / 1e9)
            time.sleep(PAUSE_SECONDS)
            for length in (WARM_TOKENS, num_tokens) if number == 0 else (num_tokens,):
                pipes[name].send((prompt, length))
                text = answer(pipes[name], name)
            found[name].append(text)
        if DRAFTED in found and found[DRAFTED][-1].token_ids != found[PLAIN][-1].token_ids:
            sys.exit(f"prompt {number}: with drafts {LEVEL} wrote other tokens than plainly; please report this")
    return found, rates


def row_of(name: str, found: dict[str, list[Text]]) -> dict[str, Any]:
    texts, plain = found[name], found[PLAIN]
    num_tokens, seconds = sum(len(text.token_ids) for text in texts), sum(text.seconds for text in texts)
    behind = sum(text.seconds - text.prompt_seconds for text in texts)

    def ratio_to(other: str) -> float | None:
        pairs = zip(texts, found.get(other, []), strict=False)
        ratios = [theirs.seconds / mine.seconds for mine, theirs in pairs]
        return geomean(ratios) if ratios else None

    return {
        "contender": name,
        "tokens_per_second": num_tokens / seconds,
        "behind_prompt": (num_tokens - len(texts)) / behind,
        "ratio_to_plain": ratio_to(PLAIN),
        "ratio_to_llama_cpp": ratio_to(PEER),
        "tokens_per_round": num_tokens / sum(text.num_rounds for text in texts),
        "texts_as_plain": sum(mine.token_ids == other.token_ids for mine, other in zip(texts, plain, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("drafts", nargs="*")
    parser.add_argument("--gguf", type=Path, help="the MXFP4 level for llama.cpp; made where it is not there")
    parser.add_argument("--num-prompts", type=int, help="of the file's; all by default")
    parser.add_argument("--num-tokens", type=int, default=64, help="of each text")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if options.num_tokens < 2 or (options.num_prompts is not None and options.num_prompts < 1):
        parser.error("--num-tokens of at least 2 and --num-prompts of at least 1 are required")
    console = Console(soft_wrap=True, highlight=False, width=120)
    engine, machine = _native.Engine(implementations()[0], THREADS), this_machine(THREADS)
    console.print(f"{machine.cpu}, {THREADS} threads, {machine.compiler}, {machine.commit}, kernels {engine.name}")
    tokenizer = Tokenizer.from_folder(options.package)
    prompts = encode_prompts(tokenizer, options.package, read_prompts(options.prompts)[: options.num_prompts])
    plans: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {PLAIN: (MxconvText, (options.package, ()))}
    if options.drafts:
        plans[DRAFTED] = (MxconvText, (options.package, options.drafts))
    with ExitStack() as stack:
        if has("llama_cpp", "llama-cpp-python", console):
            say_how_llama_was_built(console)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            gguf = options.gguf or folder / f"{LEVEL}.gguf"
            if not gguf.is_file():
                export_gguf(options.package, gguf, level="draft")
            plans[PEER] = (LlamaCppText, (gguf, max(map(len, prompts)) + max(options.num_tokens, WARM_TOKENS)))
        bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
        pipes = start(plans, stack)
        found, rates = measure(pipes, prompts, options.num_tokens, bandwidth)
    rows = [row_of(name, found) for name in found]
    table = Table(*(key.replace("_", " ") for key in rows[0]), title=f"{LEVEL}, {options.num_tokens} tokens a prompt")
    for row in rows:
        cells = (
            "" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()
        )
        table.add_row(*cells)
    console.print(table)
    read = spread(rates)
    console.print(
        f"{len(prompts)} prompts; drafts {' '.join(options.drafts) or 'none'}; read bandwidth {read.median:.1f} GB/s "
        f"({read.p10:.1f} to {read.p90:.1f})"
    )
    if options.json:
        members = {"machine": asdict(machine), "level": LEVEL, "drafts": options.drafts, "results": rows}
        print(json.dumps(members | {"num_prompts": len(prompts), "read_bandwidth": asdict(read)}))


if __name__ == "__main__":
    main()
