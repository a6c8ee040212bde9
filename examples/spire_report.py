"""SPIRe's report in kind: a vanilla draft, MagicDec and SPIRe for three contexts, and SPIRe without each of its parts.

    python examples/spire_report.py WORK [--target FOLDER] [--tokens-a-parameter N] [--num-prompts N] [--json]

On the sources of the standard library (see train_tiny_pair.py), of which every 50th file is held out, it
    1. trains a target of eight layers, unless one is given; its tokens are those of the embedded models
    2. trains drafts: two vanilla ones of an eighth of the target's weights, from random ones by cross-entropy on the
       text (the paper's shape, half the layers and half the width, and an eighth of the layers); SPIRe; and SPIRe
       without each of its parts. MagicDec needs none: it is the target over a sink and a window
    3. counts tokens a round of four draft tokens, sampled at temperature 1 by speculative sampling, behind contexts
       that end at the same places of the held-out text
    4. writes report.md, report.json and ablations.svg: Table 1 and Fig. 5 of arXiv 2504.06419, and throughput
       multipliers by that paper's model, at the sizes of its models and at these

Contexts, training windows, k, sink, window and 20 tokens a parameter are the paper's (section 4). The text is not: 3
million tokens, of which the target reads each about 18 times. Without the sparse cache, tokens a round are not measured
but taken to be SPIRe's, as in section 4.2.

What is done stays in WORK, where a run that was killed goes on; a training writes its losses, a line a step, into
WORK/NAME.training/losses.jsonl. It needs the extra train, and trains on a GPU where there is one. On two free CPU cores
the defaults take most of a day, and --tokens-a-parameter 6 a third of it.
"""

import argparse
import contextlib
import json
import shutil
import sys
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from spire_picture import write_picture
from spire_tables import tables
from spire_throughput import (
    BLOCK,
    CURVE_BATCH,
    CURVE_CONTEXTS,
    DENSE,
    DRAFTS,
    MAGICDEC,
    NARROW,
    PLAIN,
    SINK,
    SPIRE,
    WINDOW,
    Report,
    curves,
    half_as_wide,
    multipliers,
)
from tokens_a_round import Rate, measure
from torch.nn.functional import cross_entropy
from train_tiny_pair import read_library

from mxconv.arch.families.table import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.output import progress_bars
from mxconv.cli.train_draft import draft as train_draft
from mxconv.cli.train_readers import spire as train_spire
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.cost.throughput import DecoderBody
from mxconv.drafts.kind import DraftSpec
from mxconv.errors import MxconvError
from mxconv.report.picture import check_suffix
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.frozen_target import FrozenTarget

EMBEDDED = Path(__file__).parent / "models" / "pylib-1.5m"
NUM_LAYERS = 8  # section 4, as the others
CONTEXTS, NEW_TOKENS, LENGTH = (256, 512, 960), 64, 1024
SWITCHES: dict[str, dict[str, Any]] = {  # of `mxconv train spire`, Fig. 5 in its order
    "no states of the target": {"past_memory": "embeddings"},
    "no distillation": {"loss": "text"},
    "no pruned start": {"random_start": True},
    "no feedback memory": {"no_feedback": True},
    "no acceptance in the loss": {"loss": "distillation"},
}
TARGET_RATE, DRAFT_RATE = 3e-3, 1e-3  # highest learning rates, from random weights and for drafts


class Workshop:
    """Where trainings and measurements are done once.

    Args:
        given: the arguments.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.work: Path = given.work
        self.target: Path = given.target or self.work / "target"
        self.tokens: Path = given.target or EMBEDDED  # a folder with the target's tokenizer
        self.picture: Path = given.picture or self.work / "ablations.svg"
        self.work.mkdir(parents=True, exist_ok=True)
        self._check_settings()

    def _check_settings(self) -> None:
        """A folder holds one report."""
        others = ("work", "picture", "json")
        own = {name: str(value) for name, value in sorted(vars(self.given).items()) if name not in others}
        path = self.work / "settings.json"
        if not path.is_file():
            path.write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")
        elif (found := json.loads(path.read_text(encoding="utf-8"))) != own:
            changed = ", ".join(sorted(name for name in own if found.get(name) != own[name]))
            raise MxconvError(
                f"{self.work}: a report with other settings ({changed}); the same are required, so that it can go on. "
                "Name another folder."
            )

    @property
    def _num_positions(self) -> int:
        """That the longest measurement takes."""
        return int(max(self.given.contexts) + self.given.new_tokens + BLOCK)

    def check(self) -> None:
        """Before hours of training: what is to be measured can be."""
        if self.given.target:
            positions = describe_file(self.target / "config.json").max_position_embeddings
            if positions < self._num_positions:
                raise MxconvError(
                    f"{self.target}: {positions} positions; {self._num_positions} are required for the longest "
                    "context, the new tokens and a proposal. Name shorter contexts."
                )
        if len(self._held_out_ids) < self.given.length:
            raise MxconvError(
                f"held-out text: {len(self._held_out_ids)} tokens; a window of --length {self.given.length} is "
                "required. Take more files or shorter windows."
            )
        self.prompts(max(self.given.contexts))
        check_suffix(self.picture)

    def texts(self) -> tuple[Path, Path]:
        """Files to train on, and those held out, of which no model saw anything."""
        paths = self.work / "library.jsonl", self.work / "held_out.jsonl"
        if not all(path.is_file() for path in paths):
            for path, texts in zip(paths, read_library(), strict=True):
                lines = (json.dumps({"text": text}) + "\n" for text in texts[: self.given.files])
                path.with_suffix(".new").write_text("".join(lines), encoding="utf-8")
                path.with_suffix(".new").replace(path)  # a kill leaves no half of it
        return paths

    @cached_property
    def _held_out_ids(self) -> list[int]:
        tokenizer = Tokenizer.from_folder(self.tokens)
        lines = self.texts()[1].read_text(encoding="utf-8").splitlines()
        return [token for line in lines for token in tokenizer.encode(json.loads(line)["text"])]

    def prompts(self, context: int) -> list[list[int]]:
        """Contexts of held-out text, whose ends are spread evenly over it and are the same for every length."""
        ids, first, count = self._held_out_ids, max(self.given.contexts), self.given.num_prompts
        if len(ids) < first + count:
            raise MxconvError(
                f"held-out text: {len(ids)} tokens; {first + count} are required. Take more files or fewer prompts."
            )
        ends = [first + number * (len(ids) - first) // count for number in range(count)]
        return [ids[end - context : end] for end in ends]

    def train_target(self) -> None:
        """Eight layers as `train draft` makes a model of text alone; it takes tokens from the embedded target."""
        if self.target.exists():
            return
        tokens = self.work / "tokens"
        if not tokens.exists():
            made = tokens.with_suffix(".new")
            shutil.copytree(EMBEDDED, made, dirs_exist_ok=True)
            positions = max(self.given.length, self._num_positions)
            _change(made / "generation_config.json", max_length=positions)
            _change(made / "tokenizer_config.json", model_max_length=positions)
            _change(made / "config.json", max_position_embeddings=positions)
            made.replace(tokens)
        hidden = self.given.hidden_size
        self._train_llama(
            self.target, tokens, DecoderBody(NUM_LAYERS, hidden, hidden // 32, hidden // 32, 32, 3 * hidden)
        )

    def bodies(self) -> dict[str, DecoderBody]:
        """Of the drafts that are trained, by the target's sizes."""
        whole = body_of(self.target)
        full = replace(whole, num_key_value_heads=whole.num_attention_heads)  # as `train draft` makes models
        return {PLAIN: full.with_layers(1 / 8), NARROW: half_as_wide(full), SPIRE: whole.with_layers(1 / 4)}

    def train_drafts(self) -> None:
        bodies = self.bodies()
        for name in (PLAIN, NARROW):
            self._train_llama(self.folder(name), self.target, bodies[name])
        for name, choices in {SPIRE: {}, **SWITCHES}.items():
            if not self.folder(name).exists():
                say(f"trains {name}")
                with contextlib.redirect_stdout(sys.stderr):
                    train_spire(
                        texts=[self.texts()[0]], target=self.target, output=self.folder(name), sink=SINK, block=BLOCK,
                        layers=bodies[SPIRE].num_layers, window=WINDOW, learning_rate=DRAFT_RATE,
                        **self._sizes(bodies[SPIRE]), **choices,
                    )  # fmt: skip

    def _train_llama(self, folder: Path, target: Path, body: DecoderBody) -> None:
        if folder.exists():
            return
        say(f"trains {folder.name}: {body.num_layers} layers, hidden size {body.hidden_size}")
        with contextlib.redirect_stdout(sys.stderr):
            train_draft(
                texts=[self.texts()[0]], target=target, output=folder, layers=body.num_layers, loss="text",
                hidden_size=body.hidden_size,
                intermediate_size=body.intermediate_size, heads=body.num_attention_heads, learning_rate=TARGET_RATE,
                **self._sizes(body),
            )  # fmt: skip

    def _sizes(self, body: DecoderBody) -> dict[str, Any]:
        """Of a training: a fixed number of steps, or the tokens that a model of this size is to see."""
        vocab_size = describe_file(self.tokens / "config.json").vocab_size
        parameters = body.num_parameters + vocab_size * body.hidden_size
        steps = self.given.steps or max(round(self.given.tokens_a_parameter * parameters / self.given.batch_tokens), 1)
        return {"steps": steps, "batch_tokens": self.given.batch_tokens, "length": self.given.length}

    def folder(self, name: str) -> Path:
        return self.work / name.replace(",", "").replace(" ", "-")

    def package(self) -> Path:
        """The target as the engine reads it: its very weights, rebuilt from BSFP."""
        path = self.work / "package"
        if not path.exists():
            with open_checkpoint(self.target) as source:
                convert(source, path, QuantizeOptions(codec="bsfp"))
        return path

    def target_loss(self) -> float:
        """Nats a token of the held-out text, in windows as long as those of training."""
        path = self.work / "target_loss.json"
        if not path.is_file():
            target, length = FrozenTarget(self.target, torch.device("cpu")), self.given.length
            rows = torch.tensor(self._held_out_ids[: len(self._held_out_ids) // length * length]).view(-1, length)
            losses = [cross_entropy(target.logits(row[None])[0, :-1], row[1:]).item() for row in rows]
            path.write_text(json.dumps(sum(losses) / len(losses)), encoding="utf-8")
        return float(json.loads(path.read_text(encoding="utf-8")))

    def rate(self, name: str, context: int) -> Rate:
        """Tokens a round of a draft behind contexts of one length."""
        drafts = {
            MAGICDEC: DraftSpec("streaming", parameters={"sink": SINK, "window": WINDOW}),
            PLAIN: DraftSpec("checkpoint", str(self.folder(PLAIN))),
            NARROW: DraftSpec("checkpoint", str(self.folder(NARROW))),
        }
        spec = drafts.get(name) or DraftSpec("spire", str(self.folder(name)))
        found = self.work / f"rounds-{self.folder(name).name}-{context}.jsonl"
        with progress_bars("prompts") as progress:
            rate = measure(
                self.package(), spec, self.prompts(context), self.given.new_tokens, BLOCK, found,
                lambda done, total: progress(f"{name}, context {context}", done, total),
            )  # fmt: skip
        say(f"{name}, context {context}: {rate} tokens a round, {rate.num_rounds} rounds")
        return rate


def _change(path: Path, **values: object) -> None:
    members = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")


def body_of(folder: Path) -> DecoderBody:
    c = describe_file(folder / "config.json")
    return DecoderBody(
        c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
        c.intermediate_size,
    )  # fmt: skip


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--target", type=Path, help="a Llama with 16-bit weights; else one is trained")
    parser.add_argument("--hidden-size", type=int, default=160, help="of the target that is trained; a multiple of 32")
    parser.add_argument("--tokens-a-parameter", type=float, default=20, help="that every model sees, section 4")
    parser.add_argument("--steps", type=int, help="of every training, whatever its size")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a window of all trainings")
    parser.add_argument("--files", type=int, help="of the library, the first; all by default")
    parser.add_argument("--contexts", type=int, nargs="+", default=list(CONTEXTS))
    parser.add_argument("--num-prompts", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS, help="behind every prompt")
    parser.add_argument("--picture", type=Path, help=".svg or .png; WORK/ablations.svg by default")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    return parser.parse_args()


def main() -> None:
    given = parse()
    shop = Workshop(given)
    shop.check()
    shop.train_target()
    shop.train_drafts()
    middle = sorted(given.contexts)[len(given.contexts) // 2]
    rates = {context: {name: shop.rate(name, context) for name in DRAFTS} for context in given.contexts}
    own = rates[middle][SPIRE]
    ablations = {SPIRE: own, DENSE: own, **{name: shop.rate(name, middle) for name in SWITCHES}}
    bodies = {"target": body_of(shop.target), **shop.bodies()}
    report = Report(bodies, shop.target_loss(), given.num_prompts, rates, middle, ablations)
    modelled = multipliers(report)
    title = f"SPIRe without its parts, context {middle:,}"
    where = f"context; sizes of the paper's target of 67 M, batch {CURVE_BATCH}"
    write_picture(shop.picture, ablations, CURVE_CONTEXTS, curves(report), title, where, DENSE)
    text = "\n".join(tables(report, modelled)) + "\n"
    members = json.dumps({**asdict(report), "multipliers": modelled})
    (shop.work / "report.md").write_text(text, encoding="utf-8")
    (shop.work / "report.json").write_text(members + "\n", encoding="utf-8")
    print(text)
    if given.json:
        print(members)


if __name__ == "__main__":
    main()
