"""Train the drafts of the embedded target that read its hidden states: an MLP speculator and a SPIRe draft.

What it makes
    examples/models/pylib-1.5m-speculator   four heads, states of 192 numbers, by both stages of arXiv 2404.19124
    examples/models/pylib-1.5m-spire        the target's last two layers, as arXiv 2504.06419 trains them
    Both in BF16, in the layouts of formats/speculator.md and formats/spire.md.

From what
    The sources that the target was trained on, see train_tiny_pair.py, and text that the target writes.

Needs the extra train; within two hours on 2 CPU cores. It can be killed and run again.

    python examples/train_tiny_readers.py                     # writes into examples/models
    python examples/train_tiny_readers.py --share 0.01 --texts 32 --out /tmp/readers --work /tmp/readers_work
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from train_tiny_pair import read_library

MODELS = Path(__file__).parent / "models"
TARGET = MODELS / "pylib-1.5m"
KINDS = {  # steps and options; a speculator begins at random, a SPIRe draft as layers of the target
    "speculator": (2100, "--heads", "4", "--inner-dim", "192", "--scale-input", "--learning-rate", "1e-2"),
    "spire": (700, "--layers", "2"),
}


def mxconv(*arguments: str | Path) -> None:
    words = [str(argument) for argument in arguments]
    print("$ mxconv", *words, flush=True)
    subprocess.run([sys.executable, "-m", "mxconv.cli.main", *words], check=True)


def main(
    out: Path = MODELS,
    work: Path = Path("tiny_readers_work"),
    share: Annotated[float, typer.Option(help="of the steps")] = 1.0,
    texts: Annotated[int, typer.Option(help="that the target writes")] = 2048,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    library, own = work / "library.jsonl", work / "own.jsonl"
    if not library.is_file():
        library.write_text("".join(json.dumps({"text": text}) + "\n" for text in read_library()[0]))
    if not own.is_file():
        sizes = ("--num-texts", str(texts), "--prompt-tokens", "64", "--new-tokens", "192")
        mxconv("train", "generate", library, "--target", TARGET, "-o", own, *sizes, "--temperature", "0.8")
    common = ("--target", TARGET, "--generated", own, "--length", "256", "--batch-tokens", "4096")
    for kind, (num_steps, *options) in KINDS.items():
        output, steps = out / f"pylib-1.5m-{kind}", max(round(num_steps * share), 2)
        if not output.exists():
            mxconv("train", kind, library, "-o", output, *common, "--steps", str(steps), *options)


if __name__ == "__main__":
    typer.run(main)
