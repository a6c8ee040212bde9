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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from spire_picture import write_picture
from tokens_a_round import Rate, measure
from torch.nn.functional import cross_entropy
from train_tiny_pair import read_library

from mxconv.checkpoint.draft_spec import DraftSpec
from mxconv.checkpoint.source import open_checkpoint
from mxconv.cli.output import progress_bars
from mxconv.cli.train_draft import draft as train_draft
from mxconv.cli.train_spire import spire as train_spire
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.cost.hardware import open_hardware
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_TARGET,
    WINDOW_FRACTION,
    BatchedDraft,
    Body,
    throughput_multiplier,
)
from mxconv.errors import MxconvError
from mxconv.model.config import ModelConfig
from mxconv.model.tokenizer import Tokenizer
from mxconv.train.frozen_target import FrozenTarget

EMBEDDED = Path(__file__).parent / "models" / "pylib-1.5m"
BLOCK, SINK, WINDOW, NUM_LAYERS = 4, 1, 64, 8  # section 4
CONTEXTS, NEW_TOKENS, LENGTH = (256, 512, 960), 64, 1024
TARGET_RATE, DRAFT_RATE = 3e-3, 1e-3  # highest learning rates, from random weights and for drafts
PLAIN, NARROW, MAGICDEC, SPIRE = "vanilla, 1 layer", "vanilla, half as wide", "MagicDec", "SPIRe"
DENSE = "no sparse cache"
ABLATIONS: dict[str, dict[str, Any]] = {  # Fig. 5, in the paper's order; what trains each
    "no states of the target": {"past_memory": "embeddings"},
    "no distillation": {"loss": "text"},
    "no pruned start": {"random_start": True},
    "no feedback memory": {"no_feedback": True},
    "no acceptance in the loss": {"loss": "distillation"},
}
PUBLISHED = {  # Table 1
    256: {NARROW: 2.637, MAGICDEC: 4.005, SPIRE: 3.427},
    512: {NARROW: 2.647, MAGICDEC: 3.891, SPIRE: 3.401},
    960: {NARROW: 2.644, MAGICDEC: 3.793, SPIRE: 3.382},
}
PUBLISHED_MULTIPLIERS = {NARROW: 1.36, MAGICDEC: 2.05, SPIRE: 2.78}  # Fig. 4: batch 64, context 512
PLACES = ((1, 512), (16, 512), (64, 256), (64, 512), (64, 960), (256, 512))  # (batch, context)
PLACE_70B = (64, 65_536)
CURVE_CONTEXTS, CURVE_BATCH = [2**power for power in range(5, 15)], 64
HARDWARE, FORM = "h100-sxm", "int8"  # as `mxconv cost` reproduces the paper's figures: values of one byte


@dataclass(frozen=True)
class Report:
    """What is measured and modelled.

    Args:
        target_loss: nats a token of the held-out text.
        rates: of each context and draft.
        ablations: of SPIRe and of what it is without each of its parts, at the middle context.
    """

    target_loss: float
    rates: dict[int, dict[str, Rate]]
    ablations: dict[str, Rate]


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
            raise MxconvError(f"{self.work}: a report with another {changed}; one is required. Name another folder.")

    @property
    def _num_positions(self) -> int:
        """That the longest measurement takes."""
        return int(max(self.given.contexts) + self.given.new_tokens + BLOCK)

    def check(self) -> None:
        """Before hours of training: what is to be measured can be."""
        if self.given.target:
            positions = ModelConfig.from_file(self.target / "config.json").max_position_embeddings
            if positions < self._num_positions:
                raise MxconvError(
                    f"{self.target}: {positions} positions; {self._num_positions} are required for the longest "
                    "context, the new tokens and a proposal. Name shorter contexts."
                )
        self.prompts(max(self.given.contexts))

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
        self._train_llama(self.target, tokens, Body(NUM_LAYERS, hidden, hidden // 32, hidden // 32, 32, 3 * hidden))

    def bodies(self) -> dict[str, Body]:
        """Of the drafts that are trained, by the target's sizes."""
        whole = body_of(self.target)
        full = replace(whole, num_key_value_heads=whole.num_attention_heads)  # as `train draft` makes models
        return {PLAIN: full.with_layers(1 / 8), NARROW: half_as_wide(full), SPIRE: whole.with_layers(1 / 4)}

    def train_drafts(self) -> None:
        bodies = self.bodies()
        for name in (PLAIN, NARROW):
            self._train_llama(self.folder(name), self.target, bodies[name])
        for name, choices in {SPIRE: {}, **ABLATIONS}.items():
            if not self.folder(name).exists():
                say(f"trains {name}")
                with contextlib.redirect_stdout(sys.stderr):
                    train_spire(
                        [self.texts()[0]], self.target, self.folder(name), layers=bodies[SPIRE].num_layers, block=BLOCK,
                        sink=SINK, window=WINDOW, learning_rate=DRAFT_RATE, **self._sizes(bodies[SPIRE]), **choices,
                    )  # fmt: skip

    def _train_llama(self, folder: Path, target: Path, body: Body) -> None:
        if folder.exists():
            return
        say(f"trains {folder.name}: {body.num_layers} layers, hidden size {body.hidden_size}")
        with contextlib.redirect_stdout(sys.stderr):
            train_draft(
                [self.texts()[0]], target, folder, layers=body.num_layers, hidden_size=body.hidden_size, loss="text",
                intermediate_size=body.intermediate_size, heads=body.num_attention_heads, learning_rate=TARGET_RATE,
                **self._sizes(body),
            )  # fmt: skip

    def _sizes(self, body: Body) -> dict[str, Any]:
        """Of a training: a fixed number of steps, or the tokens that a model of this size is to see."""
        vocab_size = ModelConfig.from_file(self.tokens / "config.json").vocab_size
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
            MAGICDEC: DraftSpec("streaming", sink=SINK, window=WINDOW),
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


def body_of(folder: Path) -> Body:
    c = ModelConfig.from_file(folder / "config.json")
    return Body(
        c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim,
        c.intermediate_size,
    )  # fmt: skip


def half_as_wide(body: Body) -> Body:
    """With half the layers: an eighth of the weights, as the paper's vanilla draft is of its target."""
    return replace(
        body.with_layers(1 / 2),
        hidden_size=body.hidden_size // 2,
        head_dim=body.head_dim // 2,
        intermediate_size=body.intermediate_size // 2,
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def published_drafts(target: Body, rates: dict[str, float]) -> dict[str, BatchedDraft]:
    """At the sizes of the paper's models, with other tokens a round: its own window, an eighth of the context."""
    made = {
        PLAIN: BatchedDraft(target.with_layers(1 / 8), rates[PLAIN]),
        NARROW: BatchedDraft(half_as_wide(target), rates[NARROW]),
        MAGICDEC: BatchedDraft(target, rates[MAGICDEC], WINDOW_FRACTION, SINK),
        SPIRE: BatchedDraft(target.with_layers(1 / 4), rates[SPIRE], WINDOW_FRACTION, SINK, projects_memory=True),
    }
    made[DENSE] = replace(made[SPIRE], window_fraction=None)
    for name in ABLATIONS:
        made[name] = replace(made[SPIRE], tokens_per_round=rates[name])
    return made


def own_drafts(bodies: dict[str, Body], target: Body, rates: dict[str, float], context: int) -> dict[str, BatchedDraft]:
    """At the sizes that were measured."""
    window = (WINDOW + 0.5) / context  # half a position more: the model rounds down
    return {
        PLAIN: BatchedDraft(bodies[PLAIN], rates[PLAIN]),
        NARROW: BatchedDraft(bodies[NARROW], rates[NARROW]),
        MAGICDEC: BatchedDraft(target, rates[MAGICDEC], window, SINK),
        SPIRE: BatchedDraft(bodies[SPIRE], rates[SPIRE], window, SINK, projects_memory=True),
    }


def multipliers(shop: Workshop, report: Report) -> dict[str, dict[str, float]]:
    """Of each draft by where it is modelled: tokens a round of the middle context for all, as in section 4."""
    intensity = open_hardware(HARDWARE).intensity(FORM)
    middle = middle_of(shop.given.contexts)
    rates = {name: found.mean for name, found in (report.rates[middle] | report.ablations).items()}
    found: dict[str, dict[str, float]] = {}

    def model(where: str, target: Body, drafts: dict[str, BatchedDraft], batch: int, context: int) -> None:
        found[where] = {
            name: throughput_multiplier(target, draft, batch, context, BLOCK, intensity)
            for name, draft in drafts.items()
        }

    for batch, context in PLACES:
        drafts = published_drafts(SPIRE_TARGET, rates)
        model(f"67 M, batch {batch}, context {context}", SPIRE_TARGET, drafts, batch, context)
    batch, context = PLACE_70B
    drafts = published_drafts(LLAMA_3_70B, rates)
    model(f"Llama 3 70B, batch {batch}, context {context}", LLAMA_3_70B, drafts, batch, context)
    target = body_of(shop.target)
    model(
        f"this target, batch {CURVE_BATCH}, context {middle}", target,
        own_drafts(shop.bodies(), target, rates, middle), CURVE_BATCH, middle,
    )  # fmt: skip
    return found


def curves(report: Report, middle: int) -> dict[str, list[float]]:
    """Fig. 5: over the context, at the sizes of the paper's target."""
    intensity = open_hardware(HARDWARE).intensity(FORM)
    rates = {name: found.mean for name, found in (report.rates[middle] | report.ablations).items()}
    drafts = published_drafts(SPIRE_TARGET, rates)
    return {
        name: [
            throughput_multiplier(SPIRE_TARGET, drafts[name], CURVE_BATCH, context, BLOCK, intensity)
            for context in CURVE_CONTEXTS
        ]
        for name in report.ablations
    }


def middle_of(contexts: Sequence[int]) -> int:
    """The one of which ablations and multipliers are."""
    return sorted(contexts)[len(contexts) // 2]


def markdown(report: Report, modelled: dict[str, dict[str, float]], shop: Workshop) -> str:
    return "\n".join(lines_of(report, modelled, shop)) + "\n"


def lines_of(report: Report, modelled: dict[str, dict[str, float]], shop: Workshop) -> Iterator[str]:
    middle, drafts = middle_of(shop.given.contexts), (PLAIN, NARROW, MAGICDEC, SPIRE)
    body = body_of(shop.target)
    yield (
        f"Target: {body.num_layers} layers, {body.num_parameters:,} weights in them; {report.target_loss:.3f} nats a "
        "token of the held-out text\n"
    )
    yield f"Tokens a round, k = {BLOCK}, {shop.given.num_prompts} prompts, 95% confidence (bootstrap over prompts)\n"
    rows = [[f"{context:,}", *(str(rates[name]) for name in drafts)] for context, rates in report.rates.items()]
    for context in (context for context in report.rates if context in PUBLISHED):
        figures = (PUBLISHED[context].get(name) for name in drafts)
        rows.append([f"{context:,}, published", *("" if figure is None else f"{figure:.3f}" for figure in figures)])
    yield from table(["context", *drafts], rows)
    yield f"\nSPIRe without its parts, context {middle:,}; throughput at the sizes of the paper's target of 67 M\n"
    at = f"67 M, batch {CURVE_BATCH}, context 512"
    names = (f"{name} (tokens assumed)" if name == DENSE else name for name in report.ablations)
    ablations = zip(names, report.ablations.items(), strict=True)
    rows = [[shown, str(rate), f"{modelled[at][name]:.2f}"] for shown, (name, rate) in ablations]
    yield from table(["", "tokens a round", at.removeprefix("67 M, ")], rows)
    intensity = open_hardware(HARDWARE).intensity(FORM)
    yield f"\nThroughput over plain decoding, modelled: {HARDWARE}, {FORM}, {intensity:.0f} FLOPs a byte\n"
    rows = [[where, *(f"{found[name]:.2f}" for name in drafts)] for where, found in modelled.items()]
    figures = (PUBLISHED_MULTIPLIERS.get(name) for name in drafts)
    rows.append([f"{at}, published", *("" if figure is None else f"{figure:.2f}" for figure in figures)])
    yield from table(["", *drafts], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        yield f"| {' | '.join(row)} |"


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
    middle = middle_of(given.contexts)
    rates = {c: {name: shop.rate(name, c) for name in (PLAIN, NARROW, MAGICDEC, SPIRE)} for c in given.contexts}
    own = rates[middle][SPIRE]
    report = Report(
        shop.target_loss(), rates, {SPIRE: own, DENSE: own, **{name: shop.rate(name, middle) for name in ABLATIONS}}
    )
    modelled = multipliers(shop, report)
    write_picture(
        given.picture or shop.work / "ablations.svg",
        report.ablations,
        CURVE_CONTEXTS,
        curves(report, middle),
        f"SPIRe without its parts, context {middle:,}",
        f"context; sizes of the paper's target of 67 M, batch {CURVE_BATCH}",
        DENSE,
    )
    text = markdown(report, modelled, shop)
    members = json.dumps({**asdict(report), "multipliers": modelled})
    (shop.work / "report.md").write_text(text, encoding="utf-8")
    (shop.work / "report.json").write_text(members + "\n", encoding="utf-8")
    print(text)
    if given.json:
        print(members)


if __name__ == "__main__":
    main()
