"""Tokens a round of a draft, with a confidence interval: the measurement that reports on drafts share.

A prompt counts the rounds that begin within its first so many new tokens, whole: the engine is asked for a proposal
more than that, so that no round is cut. The tokens of all rounds over the number of rounds is the mean; its interval is
a bootstrap over prompts, since the rounds of one prompt are not independent.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import MxconvError
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling

NUM_RESAMPLES, COVERED = 10_000, 0.95


@dataclass(frozen=True)
class Rate:
    """Tokens a round: the mean of all rounds, and the bounds of its 95% confidence interval."""

    mean: float
    low: float
    high: float
    num_rounds: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {(self.high - self.low) / 2:.3f}"


def rate(counts: Sequence[tuple[int, int]], seed: int = 0) -> Rate:
    """Of (tokens, rounds) of each prompt.

    Raises:
        MxconvError: no prompt has a round.
    """
    table = np.array(counts, np.int64).reshape(-1, 2)
    tokens, rounds = table.sum(0)
    if not rounds:
        raise MxconvError(f"{len(counts)} prompts: 0 rounds; at least one is required. Give prompts, and new tokens.")
    random = np.random.Generator(np.random.Philox(key=seed))
    chosen = random.multinomial(len(table), np.full(len(table), 1 / len(table)), NUM_RESAMPLES)
    sums = chosen @ table
    sums = sums[sums[:, 1] > 0]
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return Rate(float(tokens / rounds), float(low), float(high), int(rounds))


def measure(
    package: Path,
    draft: DraftSpec,
    prompts: Sequence[Sequence[int]],
    num_new_tokens: int,
    num_draft_tokens: int,
    found: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Rate:
    """Sample behind prompts at temperature 1 by speculative sampling (arXiv 2211.17192), a chain of one length a round.

    Args:
        package: whose target decodes.
        draft: what drafts for it.
        prompts: token ids; the draws of a prompt depend on its number.
        num_new_tokens: of a prompt, within which a round that counts begins.
        num_draft_tokens: of every proposal.
        found: a file with a line of JSON a prompt; those that are there are not measured again.
        progress: told of prompts.
    """
    lines = found.read_text(encoding="utf-8").split("\n")[:-1] if found.is_file() else []  # behind the last, a torn one
    with LoadedPackage(package, ["target"], drafts=[draft]) as loaded:
        hierarchy = Hierarchy(loaded.levels, [num_draft_tokens], [0.0], "chain")
        for number in range(len(lines), len(prompts)):
            selection = Selection(Sampling(1.0), "rejection", number)
            made = hierarchy.generate(prompts[number], num_new_tokens + num_draft_tokens, selection=selection)
            lines.append(json.dumps(whole_rounds(made, num_new_tokens, num_draft_tokens)))
            found.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            progress(number + 1, len(prompts))
    return rate([tuple(json.loads(line)) for line in lines[: len(prompts)]])


def whole_rounds(made: Generation, num_new_tokens: int, num_draft_tokens: int) -> tuple[int, int]:
    """Tokens and number of the rounds that count; the first round is the prompt's own, without a draft."""
    draft = made.trace.statistics[1].name
    _, *rounds = (entry for entry in made.trace.entries if entry.level == draft)
    num_tokens, num_rounds = 1, 0
    for entry in rounds:
        if num_tokens >= num_new_tokens:
            break
        assert entry.num_proposed == num_draft_tokens, entry  # the engine was asked for enough
        num_tokens, num_rounds = num_tokens + entry.num_accepted + 1, num_rounds + 1
    return num_tokens - 1, num_rounds
