"""Texts as windows of tokens of one length, and the stages of a training that read them step by step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mxconv.arrays import I32, I64
from mxconv.checkpoint.regular_file import open_file, parse_json_object
from mxconv.errors import ModelError
from mxconv.progress import Progress, silent
from mxconv.text.texts import MAX_LINE_BYTES, read_documents
from mxconv.text.tokenizer import Tokenizer

WARM_UP = 0.05  # of a stage


@dataclass(frozen=True)
class Windows:
    """Rows of a corpus."""

    token_ids: I32  # (num_windows, length)
    num_prompt_tokens: int = 0  # of each row, the first ones that the target did not write

    @property
    def length(self) -> int:
        return int(self.token_ids.shape[1])


def text_windows(texts: Sequence[Path], tokenizer: Tokenizer, length: int, progress: Progress = silent) -> Windows:
    """Documents one after another, cut into windows of `length` tokens; what is left over at the end is dropped.

    Raises:
        MxconvError: a file cannot be read or is no text, or there is not one window.
    """
    ids = [
        np.array(tokenizer.encode(piece.text, piece.begins_document), np.int32)
        for piece in read_documents(texts, "read texts", progress)
    ]
    joined = np.concatenate([np.empty(0, np.int32), *ids])
    if len(joined) < length:
        raise ModelError(
            f"{', '.join(map(str, texts))}: {len(joined)} tokens; a window of {length} at least is required. Give more "
            "text."
        )
    return Windows(joined[: len(joined) // length * length].reshape(-1, length))


def written_windows(path: Path, vocab_size: int) -> Windows:
    """Windows of the texts that `mxconv train generate` wrote.

    Raises:
        MxconvError: it cannot be read, a line has no token ids of the target, or the lines are not alike.
    """
    rows: list[I32] = []
    prompts: set[int] = set()
    with open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            name = f"{path}: line {number}"
            members = parse_json_object(line, name, unique_keys=False)
            row, num_prompt = members.get("token_ids"), members.get("num_prompt_tokens")
            if (
                not isinstance(row, list)
                or not all(type(token) is int and 0 <= token < vocab_size for token in row)
                or type(num_prompt) is not int
                or not 0 <= num_prompt < len(row)
            ):
                raise ModelError(
                    f"{name}: no `token_ids` below {vocab_size} with a shorter `num_prompt_tokens`; what `mxconv train "
                    "generate` writes for this target is required. Generate it."
                )
            rows.append(np.array(row, np.int32))
            prompts.add(num_prompt)
    if len({len(row) for row in rows}) != 1 or len(prompts) != 1:
        raise ModelError(
            f"{path}: {len(rows)} lines of different lengths, or none; alike ones are required. Answers of `mxconv "
            "train generate --chat` are texts: give their file in the place of texts, without --generated."
        )
    return Windows(np.stack(rows), prompts.pop())


@dataclass(frozen=True)
class TrainingStage:
    """A part of a training."""

    name: str  # for people
    windows: Windows
    num_steps: int  # at least one
    batch_size: int  # windows of a step, of all processes together
    peak: float  # the highest learning rate, after a warm-up over the first twentieth
    last: float  # what it falls to, along half a cosine

    @property
    def num_tokens(self) -> int:
        """Read in all steps, each as often as it is read."""
        return self.num_steps * self.batch_size * self.windows.length

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step of this stage."""
        warm_up = max(round(WARM_UP * self.num_steps), 1)
        if step < warm_up:
            return self.peak * (step + 1) / warm_up
        share = (step - warm_up) / max(self.num_steps - warm_up, 1)
        return self.last + (self.peak - self.last) * (1 + math.cos(math.pi * share)) / 2

    def rows(self, step: int, seed: int) -> I32:
        """The windows of a step, (batch_size, length): every one once before any comes again, in an order of the seed.

        A step's windows depend on the seed and the step alone, so that a run that goes on is the same run.
        """
        count = len(self.windows.token_ids)
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        chosen = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(places // count):
            order = _order(count, seed, int(epoch))
            inside = places // count == epoch
            chosen[inside] = order[places[inside] % count]
        rows: I32 = self.windows.token_ids[chosen]
        return rows


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> I64:
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


def stage_of(stages: Sequence[TrainingStage], step: int) -> tuple[TrainingStage, int]:
    """The stage of a step of the whole training, and its number there."""
    for stage in stages:
        if step < stage.num_steps:
            return stage, step
        step -= stage.num_steps
    raise IndexError(step)


def frequent_tokens(texts: Iterable[Windows], count: int, vocab_size: int) -> I64:
    """The most frequent ones, (count,) int64, rising; among those that come as often the lower ids.

    Args:
        texts: of all stages.
        count: how many, at most `vocab_size`; tokens that never come fill up.
        vocab_size: of the target.

    Examples:
        >>> frequent_tokens([Windows(np.array([[5, 3, 5], [3, 1, 5]], np.int32))], 3, 8).tolist()
        [1, 3, 5]
    """
    counts = np.zeros(vocab_size, np.int64)
    for windows in texts:
        counts += np.bincount(windows.token_ids.ravel(), minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])
