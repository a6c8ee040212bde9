"""SPIRe's Table 1 and Fig. 5 (arXiv 2504.06419) in kind: vanilla drafts, MagicDec, SPIRe, and SPIRe without its parts.

    python examples/papers/spire.py WORK [--hidden-size N] [--tokens-a-parameter N] [--num-prompts N] [--json]

On the sources of the standard library (see train_tiny_pair.py), of which every 50th file is held out, it trains a
target of eight layers, two vanilla drafts of an eighth of its weights (half the layers and half the width, as in the
paper, and an eighth of the layers), SPIRe, and SPIRe without each of its parts. MagicDec needs no training: it is the
target over a sink and a window. Then it counts tokens a step of four draft tokens, sampled at temperature 1, after
contexts that end at the same places of the held-out text, and prints both tables with the throughput over plain
decoding that the paper's model gives at its sizes, batch 64 and context 512. Without the sparse cache, tokens a step
are taken to be SPIRe's, as in section 4.2.

Contexts, training windows, k, sink, window and 20 tokens a parameter are the paper's (section 4). Trained drafts and
counts stay in WORK, where a run that was killed goes on. It needs the extra train; on two free CPU cores the defaults
take most of a day, and --tokens-a-parameter 6 a third of it.
"""

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from published.spire_figures import THROUGHPUT
from tokens_per_step import Rate, measure
from train_tiny_pair import read_library

from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.train_drafts_commands import draft as train_draft
from mxconv.cli.train_drafts_commands import spire as train_spire
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.cost.hardware import open_hardware
from mxconv.cost.throughput import SPIRE_DRAFTS, SPIRE_TARGET, BatchedDraft, DecoderBody, throughput_multiplier
from mxconv.drafts.kind import DraftSpec
from mxconv.errors import MxconvError
from mxconv.text.tokenizer import Tokenizer

EMBEDDED = Path(__file__).parents[1] / "models" / "pylib-1.5m"
PLAIN, NARROW, MAGICDEC, SPIRE = DRAFTS = ("vanilla, 1 layer", "vanilla, half as wide", "MagicDec", "SPIRe")
DENSE = "no sparse cache"
NAMES = {NARROW: "vanilla"}  # in the paper's cost model
NUM_LAYERS, BLOCK, SINK, WINDOW, BATCH, CONTEXT = 8, 4, 1, 64, 64, 512  # section 4
SWITCHES: dict[str, dict[str, Any]] = {  # of `mxconv train spire`, Fig. 5 in its order
    "no states of the target": {"past_memory": "embeddings"},
    "no distillation": {"loss": "text"},
    "no pruned start": {"random_start": True},
    "no feedback memory": {"no_feedback": True},
    "no acceptance in the loss": {"loss": "distillation"},
}
TARGET_RATE, DRAFT_RATE = 3e-3, 1e-3  # highest learning rates, from random weights and for drafts
PUBLISHED = {  # Table 1; Fig. 4
    256: {NARROW: 2.637, MAGICDEC: 4.005, SPIRE: 3.427},
    512: {NARROW: 2.647, MAGICDEC: 3.891, SPIRE: 3.401},
    960: {NARROW: 2.644, MAGICDEC: 3.793, SPIRE: 3.382},
}


class Workshop:
    """Where each training and measurement is done once; `given` are the arguments."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.work: Path = given.work
        self.target = self.work / "target"
        self.work.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in sorted(vars(given).items()) if name not in ("work", "json")}
        path = self.work / "settings.json"
        if not path.is_file():
            path.write_text(json.dumps(own), encoding="utf-8")
        elif json.loads(path.read_text(encoding="utf-8")) != own:
            raise MxconvError(f"{self.work}: a report with other settings; the same are required. Name another folder.")

    @cached_property
    def texts(self) -> tuple[Path, Path]:
        """Files to train on, and those held out, of which no model saw anything."""
        paths = self.work / "library.jsonl", self.work / "held_out.jsonl"
        for path, texts in zip(paths, read_library(), strict=True):
            lines = (json.dumps({"text": text}) + "\n" for text in texts[: self.given.files])
            path.write_text("".join(lines), encoding="utf-8")
        return paths

    def prompts(self, context: int) -> list[list[int]]:
        """Contexts of held-out text, whose ends are spread evenly over it and are the same for every length.

        Raises:
            MxconvError: the text is too short.
        """
        tokenizer = Tokenizer.from_folder(EMBEDDED)
        lines = self.texts[1].read_text(encoding="utf-8").splitlines()
        ids = [token for line in lines for token in tokenizer.encode(json.loads(line)["text"])]
        first, count = max(self.given.contexts), self.given.num_prompts
        if len(ids) < first + count:
            raise MxconvError(f"held-out text: {len(ids)} tokens; {first + count} are required. Take more files.")
        ends = [first + number * (len(ids) - first) // count for number in range(count)]
        return [ids[end - context : end] for end in ends]

    def train(self) -> None:
        """Train the target as a Llama of text alone with the embedded tokenizer, and all drafts."""
        tokens = self.work / "tokens"
        shutil.copytree(EMBEDDED, tokens, dirs_exist_ok=True)
        positions = max(self.given.length, max(self.given.contexts) + self.given.new_tokens + BLOCK)
        config = json.loads((tokens / "config.json").read_text()) | {"max_position_embeddings": positions}
        (tokens / "config.json").write_text(json.dumps(config))
        hidden = self.given.hidden_size
        whole = DecoderBody(NUM_LAYERS, hidden, hidden // 32, hidden // 32, 32, 3 * hidden)
        narrow = replace(  # an eighth of the weights, as the paper's vanilla draft is of its target
            whole.with_layers(1 / 2), hidden_size=hidden // 2, head_dim=16, intermediate_size=3 * hidden // 2
        )
        self._train("target", whole, tokens)
        self._train(PLAIN, whole.with_layers(1 / 8), self.target)
        self._train(NARROW, narrow, self.target)
        for name, choices in {SPIRE: {}, **SWITCHES}.items():
            self._train(name, whole.with_layers(1 / 4), self.target, choices)

    def _train(self, name: str, body: DecoderBody, target: Path, choices: dict[str, Any] | None = None) -> None:
        """Train a Llama, or with `choices` a SPIRe draft, unless it is there."""
        if self.folder(name).exists():
            return
        parameters = body.num_parameters + describe_file(EMBEDDED / "config.json").vocab_size * body.hidden_size
        steps = self.given.steps or max(round(self.given.tokens_a_parameter * parameters / self.given.batch_tokens), 1)
        common = {"texts": [self.texts[0]], "target": target, "output": self.folder(name), "layers": body.num_layers}
        common |= {"steps": steps, "batch_tokens": self.given.batch_tokens, "length": self.given.length}
        with contextlib.redirect_stdout(sys.stderr):
            if choices is not None:
                train_spire(**common, sink=SINK, block=BLOCK, window=WINDOW, learning_rate=DRAFT_RATE, **choices)
            else:
                sizes = {"hidden_size": body.hidden_size, "intermediate_size": body.intermediate_size}
                heads = body.num_attention_heads
                train_draft(**common, **sizes, heads=heads, loss="text", learning_rate=TARGET_RATE)

    def folder(self, name: str) -> Path:
        return self.work / name.replace(",", "").replace(" ", "-")

    def rate(self, name: str, context: int) -> Rate:
        """Tokens a step of a draft after contexts of one length, below the target's very weights, rebuilt from BSFP."""
        package = self.work / "package"
        if not package.exists():
            with open_checkpoint(self.target) as source:
                convert(source, package, QuantizeOptions(codec="bsfp"))
        spec = DraftSpec("checkpoint" if name in (PLAIN, NARROW) else "spire", str(self.folder(name)))
        if name == MAGICDEC:
            spec = DraftSpec("streaming", parameters={"sink": SINK, "window": WINDOW})
        found = self.work / f"steps-{self.folder(name).name}-{context}.jsonl"
        return measure(package, spec, self.prompts(context), self.given.new_tokens, BLOCK, found)


def throughput(name: str, tokens_per_step: float) -> float:
    """Throughput over plain decoding at the sizes of the paper's models, with these tokens a step."""
    own = NAMES.get(name, name)
    draft = SPIRE_DRAFTS[own if own in SPIRE_DRAFTS else SPIRE](SPIRE_TARGET, WINDOW)
    if name == PLAIN:
        draft = BatchedDraft(SPIRE_TARGET.with_layers(1 / 8), 0.0)
    draft = replace(draft, tokens_per_round=tokens_per_step, **{"window": None} if name == DENSE else {})
    intensity = open_hardware("h100-sxm").intensity("int8")
    return throughput_multiplier(SPIRE_TARGET, draft, BATCH, CONTEXT, BLOCK, intensity)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        yield f"| {' | '.join(row)} |"


def tables(rates: Mapping[int, Mapping[str, Rate]], ablations: Mapping[str, Rate], middle: int) -> Iterator[str]:
    """Table 1 and Fig. 5 in Markdown, line by line."""
    yield f"Tokens a step, k = {BLOCK}, 95% confidence (bootstrap over prompts)\n"
    rows = []
    for context, found in rates.items():
        rows.append([f"{context}", *(str(found[name]) for name in DRAFTS)])
        if published := PUBLISHED.get(context):
            rows.append([f"{context}, published", *(str(published.get(name, "")) for name in DRAFTS)])
    modelled = [f"{throughput(name, rates[middle][name].mean):.2f}" for name in DRAFTS]
    rows.append([f"throughput, batch {BATCH}, context {CONTEXT}", *modelled])
    printed = THROUGHPUT[0][3]
    rows.append(["the same, published", *(str(printed.get(NAMES.get(name, name), "")) for name in DRAFTS)])
    yield from table(["context", *DRAFTS], rows)
    yield f"\nSPIRe without its parts, context {middle}\n"
    parts = [[name, str(found), f"{throughput(name, found.mean):.2f}"] for name, found in ablations.items()]
    yield from table(["", "tokens a step", "throughput"], parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--hidden-size", type=int, default=160, help="of the target; a multiple of 32")
    parser.add_argument("--tokens-a-parameter", type=float, default=20, help="that every model sees, section 4")
    parser.add_argument("--steps", type=int, help="of every training, whatever its size")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window of all trainings")
    parser.add_argument("--files", type=int, help="of the library, the first; all by default")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 512, 960])
    parser.add_argument("--num-prompts", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=64, help="after every prompt")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    given = parser.parse_args()
    shop = Workshop(given)
    shop.prompts(max(given.contexts))  # before hours of training
    shop.train()
    middle = sorted(given.contexts)[len(given.contexts) // 2]
    rates = {context: {name: shop.rate(name, context) for name in DRAFTS} for context in given.contexts}
    own = rates[middle][SPIRE]
    ablations = {SPIRE: own, DENSE: own, **{name: shop.rate(name, middle) for name in SWITCHES}}
    print("\n".join(tables(rates, ablations, middle)))
    if given.json:
        members = {context: {name: asdict(found) for name, found in own.items()} for context, own in rates.items()}
        print(json.dumps({"rates": members, "ablations": {name: asdict(found) for name, found in ablations.items()}}))


if __name__ == "__main__":
    main()
