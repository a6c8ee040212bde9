"""The MLP speculators' Table 1 (arXiv 2404.19124) in kind: tokens a step by candidates, heads and stages of training.

    python examples/papers/mlp_speculators.py TARGET TEXTS.jsonl PROMPTS.jsonl WORK [--steps N] [--json]

Trains four drafts for TARGET, a 16-bit folder, on TEXTS and on text that TARGET writes: three heads by both stages and
by the first alone, five heads and seven. Then it counts tokens a step, greedily, on continuations of PROMPTS, for 1 to
32 candidates. Trained drafts and counts stay in WORK, where a run that was killed goes on. The paper has 2.21 to
3.03 from 1 to 32 candidates (Table 1), and 2.41 to 2.63 by the second stage (section 3).
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from tokens_per_step import measure

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.train_drafts_commands import speculator
from mxconv.cli.train_generate_command import generate
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kind import DraftSpec
from mxconv.engine.tree import MOST_ROWS
from mxconv.speculation.prompts import read_prompts
from mxconv.speculation.selection import GREEDY
from mxconv.text.chat import encode_prompts
from mxconv.text.tokenizer import Tokenizer

CANDIDATES = (1, 2, 4, 8, 16, 32)
VARIANTS = {"3 heads": (3, True), "3 heads, stage 1 alone": (3, False), "5 heads": (5, True), "7 heads": (7, True)}
LENGTH, BATCH_TOKENS, PROMPT_TOKENS = 256, 4096, 64
PEAK = 1e-2  # ten times the paper's rate: these targets are small and the steps few, see docs/training.md


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=1400, help="of both stages")
    parser.add_argument("--num-prompts", type=int, default=50)
    parser.add_argument("--num-tokens", type=int, default=64, help="of each text")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    own, package = given.work / "own.jsonl", given.work / "package"
    common: dict[str, Any] = {"texts": [given.texts], "target": given.target}
    with contextlib.redirect_stdout(sys.stderr):
        if not own.is_file():
            num_texts = min(max(given.steps * 2 // 7 * BATCH_TOKENS // LENGTH, 1), 4096)
            sizes = {"num_texts": num_texts, "prompt_tokens": PROMPT_TOKENS, "new_tokens": LENGTH - PROMPT_TOKENS}
            generate(**common, output=own, **sizes, temperature=1.0)
        if not package.exists():
            with open_checkpoint(given.target) as source:
                convert(source, package, QuantizeOptions())
    tokenizer = Tokenizer.from_folder(given.target)
    prompts = encode_prompts(tokenizer, given.target, read_prompts(given.prompts)[: given.num_prompts])
    result: dict[str, dict[int, float]] = {}
    for name, (heads, second_stage) in VARIANTS.items():
        folder = given.work / name.replace(",", "").replace(" ", "-")
        if not folder.exists():
            schedule = {"steps": given.steps, "batch_tokens": BATCH_TOKENS, "length": LENGTH, "learning_rate": PEAK}
            generated = own if second_stage else None
            with contextlib.redirect_stdout(sys.stderr):
                speculator(**common, output=folder, heads=heads, scale_input=True, generated=generated, **schedule)
        result[name] = {}
        for count in CANDIDATES:
            spec = DraftSpec("speculator", str(folder), parameters={"num_candidates": count})
            found = given.work / f"steps-{folder.name}-{count}.jsonl"
            rate = measure(package, spec, prompts, given.num_tokens, heads, found, GREEDY, MOST_ROWS - 1)
            result[name][count] = rate.mean
        print(f"{name}: " + ", ".join(f"{count}: {rate:.2f}" for count, rate in result[name].items()), flush=True)
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
