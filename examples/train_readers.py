"""Train drafts that read a real model on its own answers, and show what training brings, step by step.

    python examples/train_readers.py FOLDER --prompts PROMPTS.jsonl --test MT_BENCH.jsonl

What it makes in FOLDER
    checkpoint, package   the target (SmolLM2-135M-Instruct, downloaded once, without --model)
    own.jsonl             its answers to the prompts, which should be in no test set
    KIND-STEPS            a draft after so many steps, and its 4-bit copy KIND-STEPS-4bit
    curve.svg             tokens a round and speed over plain decoding, by minutes of training

A line of the table is one training from the beginning: the learning rate falls over all its steps. Every answer is
compared, token for token, with plain decoding. It can be killed and run again. Needs the extra train; the defaults
take about an hour on 2 CPU cores with AVX512-BF16, and more steps make better drafts.
"""

import json
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import typer
from real_model import checkpoint_of, first_prompts, run
from rich.console import Console
from rich.table import Table

MOST_TOKENS = 8192  # that a head of EAGLE-3 knows
OPTIONS: dict[str, list[object]] = {
    "eagle3": ["--block", 3, "--learning-rate", 3e-3],
    "speculator": ["--heads", 3, "--scale-input", "--learning-rate", 3e-3],
}


def trained(kind: str, steps: int, folder: Path, checkpoint: Path) -> tuple[Path, float]:
    """A draft in 4 bits, and the minutes that its training took."""
    draft, minutes = folder / f"{kind}-{steps}", folder / f"{kind}-{steps}.minutes"
    common = ["--target", checkpoint, "--batch-tokens", 1024, "--length", 256, "--mixed-precision", "bf16"]
    if kind != "speculator":
        vocab_size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
        common += ["--draft-vocab-size", min(vocab_size, MOST_TOKENS)]
    if not minutes.exists():
        made = run(
            "train", kind, folder / "own.jsonl", "-o", draft, *common, "--steps", steps, *OPTIONS[kind], "--force"
        )
        minutes.write_text(str(made["seconds"] / 60))
    small = folder / f"{draft.name}-4bit"
    if not small.exists():
        run("quantize", draft, "-o", small)
    return small, float(minutes.read_text())


def main(
    folder: Path,
    prompts: Annotated[list[Path], typer.Option(help="to train on")],
    test: Annotated[Path, typer.Option(help="prompts to measure on")],
    model: Path | None = None,
    kinds: str = ",".join(OPTIONS),
    steps: str = "60,250,1000",
    num_texts: int = 1024,
    num_prompts: int = 8,
    max_new_tokens: int = 128,
    plain: Annotated[bool, typer.Option("--plain", help="prompts as they are, without the chat template")] = False,
) -> None:
    checkpoint, own, package = checkpoint_of(folder, model), folder / "own.jsonl", folder / "package"
    chat = [] if plain else ["--chat"]
    if not own.exists():
        written = ["--num-texts", num_texts, "--temperature", 0.6, *(["--prompt-tokens", 4] if plain else chat)]
        run("train", "generate", *prompts, "--target", checkpoint, "-o", own, *written)
    if not package.exists():
        run("quantize", checkpoint, "-o", package)
    asked = first_prompts(test, num_prompts, folder)
    table = Table("draft", "steps", "minutes", "strategy", "tokens a round", "over plain decoding")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for kind in kinds.split(","):
        curve = []
        for count in map(int, steps.split(",")):
            draft, minutes = trained(kind, count, folder, checkpoint)
            words = ["--levels", "target", "--draft", f"{kind}:{draft}", *chat, "--max-new-tokens", max_new_tokens]
            found = run("bench", "decode", package, "--prompts", asked, *words)["results"]
            assert all(result["identical_to_greedy"] for result in found), f"{kind}: other tokens"
            for result in found[1:]:
                cells = f"{result['tokens_per_round']:.2f}", f"{result['speedup']:.2f}"
                table.add_row(kind, str(count), f"{minutes:.0f}", result["strategy"], *cells)
            best = max(found[1:], key=lambda result: result["speedup"])
            curve.append((minutes, best["tokens_per_round"], best["speedup"]))
        for place, name in enumerate(("tokens a round", "over plain decoding"), 1):
            axes[place - 1].plot([point[0] for point in curve], [point[place] for point in curve], "o-", label=kind)
            axes[place - 1].set(xlabel="minutes of training", ylabel=name, xscale="log")
    axes[0].legend()
    figure.savefig(folder / "curve.svg")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
