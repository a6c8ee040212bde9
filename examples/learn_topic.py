"""How a draft that learns while it serves comes to accept more: the same requests with and without `--learn`.

    python examples/learn_topic.py FOLDER tests/drafts/*.py --model examples/models/pylib-1.5m \
        --draft speculator:examples/models/pylib-1.5m-speculator

Prompts are the beginnings of the functions in the given files, in an order of chance: one topic, no prompt twice.
FOLDER gets the package, and what was learned. A line of the table is a number of requests one after another, and the
share of the draft's tokens that the target accepted; tokens of both servers are compared. Without --draft a new
speculator begins, and the other server decodes plainly.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from real_model import run
from rich.console import Console
from rich.table import Table

HEAD = r"\bdef ([a-z]\w+)\("
TEST = "import unittest\n\n\nclass {title}Test(unittest.TestCase):\n    def test_{name}(self):\n"
FIXED = "--num-draft-tokens", "4", "--confidence", "0", "--tree", "chain"  # proposals that do not adapt


@contextmanager
def served(*words: object) -> Iterator[str]:
    """The URL of a server while it runs."""
    command = [sys.executable, "-m", "mxconv.cli.main", "serve", *map(str, words), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def prompts_of(files: list[Path], count: int) -> list[str]:
    """A unit test to be written for every function that the files define, in an order of chance."""
    names = sorted({name for path in files for name in re.findall(HEAD, path.read_text())})
    random.Random(0).shuffle(names)
    return [TEST.format(name=name, title=name.title().replace("_", "")) for name in names[:count]]


def answers(url: str, prompts: list[str], max_new_tokens: int, pause: float) -> Iterator[dict[str, Any]]:
    """Greedy answers with their tokens and counts, one after another, with a pause after each."""
    for prompt in prompts:
        body = {"prompt": prompt, "max_tokens": max_new_tokens, "temperature": 0, "mxconv": {"trace": True}}
        yield httpx.post(url + "/v1/completions", json=body, timeout=600).json()["choices"][0]["mxconv"]
        time.sleep(pause)


def main(
    folder: Path,
    files: list[Path],
    model: Annotated[Path, typer.Option(help="a 16-bit checkpoint")],
    draft: str | None = None,
    num_requests: int = 200,
    rows: int = 5,
    max_new_tokens: int = 64,
    pause: float = 0.5,
) -> None:
    package, learned = folder / "package", folder / "package.learned"
    if not package.exists():
        run("quantize", model, "-o", package)
    shutil.rmtree(learned, ignore_errors=True)
    prompts = prompts_of(files, num_requests)
    words = [package, "--levels", "target", *FIXED]
    given = ["--draft", draft] if draft else []
    with served(*words, "--learn", *given) as url:
        found = list(answers(url, prompts, max_new_tokens, pause))
        metrics = httpx.get(url + "/metrics").text
    with served(*words, *given) as url:
        others = list(answers(url, prompts, max_new_tokens, 0.0))
    if [tokens_of(one) for one in found] != [tokens_of(other) for other in others]:
        raise SystemExit("tokens differ")
    table = Table("requests", "accepted with --learn", *(["without", "ratio"] if draft else []))
    for row in range(rows):
        first, last = row * len(prompts) // rows, (row + 1) * len(prompts) // rows
        cells = [f"{first + 1} to {last}", f"{(learned_rate := acceptance(found[first:last])):.3f}"]
        if draft:
            rate = acceptance(others[first:last])
            cells += [f"{rate:.3f}", f"{learned_rate / rate:.2f}"]
        table.add_row(*cells)
    Console().print(table)
    print("\n".join(line for line in metrics.splitlines() if line.startswith("mxconv_learning")))


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """Their ids."""
    return [token["id"] for token in answer["tokens"]]


def acceptance(found: list[dict[str, Any]]) -> float:
    """The share of proposed tokens that were accepted."""
    levels = [one["levels"][-1] for one in found]
    return sum(level["num_accepted"] for level in levels) / sum(level["num_proposed"] for level in levels)


if __name__ == "__main__":
    typer.run(main)
