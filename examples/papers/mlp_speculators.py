"""The MLP speculators' Table 1 (arXiv 2404.19124) in kind: tokens a step by candidates, heads and stages of training.

    python examples/papers/mlp_speculators.py TARGET TEXTS.jsonl PROMPTS.jsonl WORK [--steps N] [--json]

Trains four drafts for TARGET, a 16-bit folder, on TEXTS and on text that TARGET writes: three heads by both stages and
by the first alone, five heads and seven. Then it counts tokens a step, greedily, on continuations of PROMPTS, for 1 to
32 candidates. Trained drafts and counts stay in WORK, where a run that was killed goes on. The paper has 2.21 to
3.03 from 1 to 32 candidates (Table 1), and 2.41 to 2.63 by the second stage (section 3).
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from tokens_per_step import measure

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.train_drafts_commands import speculator
from mxconv.cli.train_text_commands import generate
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kind import DraftSpec
from mxconv.engine.tree import MOST_ROWS
from mxconv.speculation.selection import GREEDY
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import read_prompts
from mxconv.text.tokenizer import Tokenizer

CANDIDATES = (1, 2, 4, 8, 16, 32)
VARIANTS = {"3 heads": (3, True), "3 heads, stage 1 alone": (3, False), "5 heads": (5, True), "7 heads": (7, True)}
LENGTH, BATCH_TOKENS, PROMPT_TOKENS = 256, 4096, 64
PEAK = 1e-2  # ten times the paper's rate: these targets are small and the steps few, see docs/training.md


def main(
    target: Path,
    texts: Path,
    prompts: Path,
    work: Path,
    steps: Annotated[int, typer.Option(help="of both stages")] = 1400,
    num_prompts: int = 50,
    num_tokens: Annotated[int, typer.Option(help="of each text")] = 64,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object as the last line of stdout")] = False,
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    own, package = work / "own.jsonl", work / "package"
    common: dict[str, Any] = {"texts": [texts], "target": target}
    with contextlib.redirect_stdout(sys.stderr):
        if not own.is_file():
            num_texts = min(max(steps * 2 // 7 * BATCH_TOKENS // LENGTH, 1), 4096)
            sizes = {"num_texts": num_texts, "prompt_tokens": PROMPT_TOKENS, "new_tokens": LENGTH - PROMPT_TOKENS}
            generate(**common, output=own, **sizes, temperature=1.0)
        if not package.exists():
            with open_checkpoint(target) as source:
                convert(source, package, QuantizeOptions())
    tokenizer = Tokenizer.from_folder(target)
    ids = encode_prompts(tokenizer, target, read_prompts(prompts)[:num_prompts])
    result: dict[str, dict[int, float]] = {}
    for name, (heads, second_stage) in VARIANTS.items():
        folder = work / name.replace(",", "").replace(" ", "-")
        if not folder.exists():
            schedule = {"steps": steps, "batch_tokens": BATCH_TOKENS, "length": LENGTH, "learning_rate": PEAK}
            generated = own if second_stage else None
            with contextlib.redirect_stdout(sys.stderr):
                speculator(**common, output=folder, heads=heads, scale_input=True, generated=generated, **schedule)
        result[name] = {}
        for count in CANDIDATES:
            spec = DraftSpec("speculator", str(folder), parameters={"num_candidates": count})
            found = work / f"steps-{folder.name}-{count}.jsonl"
            rate = measure(package, spec, ids, num_tokens, heads, found, GREEDY, MOST_ROWS - 1)
            result[name][count] = rate.mean
        print(f"{name}: " + ", ".join(f"{count}: {rate:.2f}" for count, rate in result[name].items()), flush=True)
    if json_output:
        print(json.dumps(result))


if __name__ == "__main__":
    typer.run(main)
