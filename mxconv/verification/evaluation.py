"""How good a package's levels are: texts evaluated by the target and by each of them, and how far apart they are.

    evaluation = evaluate(Path("package"), lambda loaded: windows(loaded, Path("texts.txt"), 512, 16_384))
    print(evaluation.levels[1].perplexity)

Figures are defined as llama.cpp's `llama-perplexity --kl-divergence` defines them: natural logarithms, the divergence
of the target from the draft, and standard errors over tokens, which take no account of neighbours being alike.
Every level is a model by itself, with its whole output head. Memory holds the logits of one text by two models.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from mxconv import __version__
from mxconv.arrays import F32, F64, I64
from mxconv.checkpoint.regular_file import sha256_file
from mxconv.drafts.kinds import kind_of
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError
from mxconv.kernels.draft_matrix import Activations
from mxconv.kernels.engine import NUMPY
from mxconv.package.manifest import EvaluationRecord, Manifest, QualityRecord, read_manifest
from mxconv.progress import Progress, silent
from mxconv.text.distribution import greedy
from mxconv.verification.scored_texts import ScoredText

CHUNK_ROWS = 32  # that are float64 at a time


@dataclass
class TokenScores:
    """Scores of a model's distributions, a value a token: lists of arrays that grow text by text."""

    surprisals: list[F64] = field(default_factory=list)  # -log p of the token that came
    divergences: list[F64] = field(default_factory=list)  # of the target from the model
    agreements: list[F64] = field(default_factory=list)  # 1 where both find the same token the likeliest, or 0

    def add(self, target: F32, logits: F32, tokens: I64) -> None:
        """Score rows of logits.

        Args:
            target: (num_tokens, vocab_size) float32 of the target.
            logits: the same of the model; where one has more columns, padding, these count in neither.
            tokens: (num_tokens,) that came.
        """
        columns = min(target.shape[1], logits.shape[1])
        for start in range(0, len(tokens), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            exact, found, came = target[rows, :columns], logits[rows, :columns], tokens[rows]
            log_target, log_model = log_softmax(exact), log_softmax(found)
            self.surprisals.append(-log_model[np.arange(len(came)), came])
            self.divergences.append(divergence(log_target, log_model))
            self.agreements.append((greedy(exact) == greedy(found)).astype(np.float64))

    def quality(self, name: str) -> QualityRecord:
        """The figures of the level of this name over all tokens; what is not finite is None."""
        surprisal, surprisal_error = _mean(np.concatenate(self.surprisals))
        divergences = np.concatenate(self.divergences)
        mean_kl, mean_kl_error = _mean(divergences)
        agreement, agreement_error = _mean(np.concatenate(self.agreements))
        with np.errstate(over="ignore", invalid="ignore"):
            perplexity = float(np.exp(surprisal))
            p99_kl = float(np.quantile(divergences, 0.99))
        figures = {
            "perplexity": perplexity,
            "perplexity_error": perplexity * surprisal_error,
            "mean_kl": mean_kl,
            "mean_kl_error": mean_kl_error,
            "p99_kl": p99_kl,
            "agreement": agreement,
            "agreement_error": agreement_error,
        }
        return QualityRecord(
            name=name, **{key: value if np.isfinite(value) else None for key, value in figures.items()}
        )


def log_softmax(logits: F32) -> F64:
    """Logarithms of probabilities, (num_rows, vocab_size) float64. A row with NaN or +inf becomes NaN."""
    exact = logits.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        exact -= exact.max(axis=-1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    return exact


def divergence(log_target: F64, log_model: F64) -> F64:
    """KL divergence of each row in nats, (num_rows,) float64, of two (num_rows, vocab_size) logarithms.

    What the target never chooses adds nothing; what it may choose and the model never does makes it infinite.
    """
    probabilities = np.exp(log_target)
    with np.errstate(invalid="ignore"):
        terms = probabilities * (log_target - log_model)
    summed: F64 = np.where(probabilities == 0, 0, terms).sum(axis=-1)
    return summed


def _mean(values: F64) -> tuple[float, float]:
    """The mean and its standard error, which a single value has none of: 0."""
    with np.errstate(invalid="ignore"):
        return float(values.mean()), float(values.std() / np.sqrt(max(len(values) - 1, 1)))


PART_TOKENS = 2048  # that parts are compared on: each is a pass over the whole model


@dataclass(frozen=True)
class Evaluation:
    """What was found, and of what."""

    levels: list[QualityRecord]  # the target first
    left_out: list[str]  # sentences on levels that cannot be compared
    parts: list[QualityRecord]  # the target with one part in 4 bits; the one that costs most first
    num_texts: int
    num_tokens: int
    activations: Activations
    kernel: str

    def record(self, path: Path, context: int | None) -> EvaluationRecord:
        """What a manifest keeps of it; `path` is the file of texts or prompts."""
        return EvaluationRecord(
            created_by=f"mxconv {__version__}",
            sha256=sha256_file(path),
            num_bytes=path.stat().st_size,
            context=context,
            **{name: getattr(self, name) for name in ("num_texts", "num_tokens", "activations", "kernel", "levels")},
        )


def evaluate(
    folder: Path,
    read: Callable[[LoadedPackage], list[ScoredText]],
    names: Sequence[str] | None = None,
    *,
    with_parts: bool = False,
    progress: Progress = silent,
    activations: Activations = "int8",
    **options: Any,
) -> Evaluation:
    """Compare levels with the target.

    Args:
        folder: the package.
        read: makes the texts, from the loaded target.
        names: of levels below the target; None for all.
        with_parts: compare parts of the 4-bit draft, too, on the first texts.
        progress: told about texts.
        activations: what weights of 4 and 8 bits are multiplied by.
        options: of `LoadedPackage`.

    Raises:
        MxconvError: a level is unknown or cannot be loaded, or there are no texts.
    """
    manifest = read_manifest(folder)
    first, (chosen, left_out) = manifest.levels[0].name, comparable(folder, manifest, names)
    drafts = [record.name for record in manifest.levels if record.kind == "self-draft"]
    if with_parts and not drafts:
        raise ModelError(f"{folder}: no 4-bit copy among its levels; parts of one are compared. Leave out --by-layer.")
    with ExitStack() as stack:

        def opened(name: str) -> LoadedPackage:
            return stack.enter_context(LoadedPackage(folder, [name], activations=activations, **options))

        loaded = opened(first)
        texts, target = read(loaded), loaded.target
        levels = measure(target, {first: target} | {name: opened(name).target for name in chosen}, texts, progress)
        parts = []
        if with_parts:
            ends = accumulate(len(text.token_ids) for text in texts)
            few = [text for text, end in zip(texts, ends, strict=True) if end <= PART_TOKENS] or texts[:1]
            parts = measure(target, dict(part_decoders(loaded, drafts[0])), few, progress)
            parts.sort(key=lambda part: inf if part.mean_kl is None else part.mean_kl, reverse=True)
        engine = loaded.matrices.engine
    num_tokens, kernel = sum(len(text.tokens) for text in texts), NUMPY if engine is None else engine.name
    return Evaluation(levels, left_out, parts, len(texts), num_tokens, activations, kernel)


def comparable(root: Path, manifest: Manifest, names: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The levels that have distributions of their own over the target's tokens, and sentences on the others.

    Args:
        root: of the package, for messages.
        manifest: of the package.
        names: of levels below the target; None for all.

    Raises:
        ModelError: an unknown level.
    """
    known = [record.name for record in manifest.levels[1:]]
    if names is not None and (unknown := [name for name in names if name not in known]):
        raise ModelError(
            f"{root}: levels {', '.join(unknown)}; names out of {', '.join(known) or 'none'} are required. "
            "Choose some of them."
        )
    found, left_out, has_target_tokens = list[str](), list[str](), True
    for record in manifest.levels[1:]:
        kind = kind_of(record)
        has_target_tokens = kind.has_target_tokens or (has_target_tokens and "tokenizer" in record.shares)
        if names is not None and record.name not in names:
            continue
        if kind.is_look_up:
            left_out.append(f"{record.name}: a look-up, which has no probability for every token; left out.")
        elif kind.is_reader:
            left_out.append(f"{record.name}: it reads another level's hidden states; left out.")
        elif not has_target_tokens:
            left_out.append(f"{record.name}: it has another tokenizer; left out.")
        else:
            found.append(record.name)
    return found, left_out


def measure(
    target: Decoder, models: Mapping[str, Decoder], texts: Sequence[ScoredText], progress: Progress = silent
) -> list[QualityRecord]:
    """Figures of each model, by its name, over all tokens that count; the target may be among them."""
    scores = {name: TokenScores() for name in models}
    for number, text in enumerate(texts):
        progress(f"evaluate {len(models)} models", number, len(texts))
        exact = text.logits(target)
        for name, decoder in models.items():
            scores[name].add(exact, exact if decoder is target else text.logits(decoder), text.tokens)
    progress(f"evaluate {len(models)} models", len(texts), len(texts))
    return [found.quality(name) for name, found in scores.items()]


def part_decoders(loaded: LoadedPackage, draft: str) -> Iterator[tuple[str, Decoder]]:
    """Decoders of the target, each with the draft's weights in one part: an attention, an MLP, the output head.

    Args:
        loaded: whose target is the package's.
        draft: name of its 4-bit level.
    """
    exact, four_bits = loaded.own.sixteen_bits, loaded.own.four_bits(draft, with_target=True)
    config, parts = loaded.own.config, dict[str, list[str]]()
    of_layer = re.compile(rf"{re.escape(config.layer_prefix)}\.\d+\.[^.]+")
    for name in (*exact.matrices, *exact.stacks):
        if config.mtp is None or not config.mtp.has(name):
            found = of_layer.match(name)
            parts.setdefault(found[0] if found else name.removesuffix(".weight"), []).append(name)
    for part, names in parts.items():
        matrices = {name: four_bits.matrices[name] for name in names if name in exact.matrices}
        stacks = {name: four_bits.stacks[name] for name in names if name in exact.stacks}
        mixed = replace(exact, matrices={**exact.matrices, **matrices}, stacks={**exact.stacks, **stacks})
        if any(mixed.matrices[name] is not exact.matrices[name] for name in matrices) or stacks:
            yield part, loaded.matrices.decoder(config, mixed, part)
