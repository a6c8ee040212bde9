"""Tokens a verification step of a draft, with a confidence interval: what the reports on papers measure.

Of a prompt count the steps that begin within its first so many new tokens, whole: the engine is asked for a proposal
more than that, so that no step is cut. The interval is a bootstrap over prompts, since the steps of one prompt are not
independent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.speculation.statistics import Generation
from mxconv.text.distribution import Sampling

NUM_RESAMPLES, COVERED = 10_000, 0.95


@dataclass(frozen=True)
class Rate:
    """Tokens a step: the mean of all steps, and the bounds of its 95% confidence interval."""

    mean: float
    low: float
    high: float
    num_steps: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {(self.high - self.low) / 2:.3f}"


def rate(counts: Sequence[tuple[int, int]], seed: int = 0) -> Rate:
    """Tokens a step from (tokens, steps) of each prompt.

    Raises:
        MxconvError: no prompt has a step.
    """
    table = np.array(counts, np.int64).reshape(-1, 2)
    tokens, steps = table.sum(0)
    if not steps:
        raise MxconvError(f"{len(counts)} prompts: 0 steps; at least one is required. Give prompts, and new tokens.")
    random = np.random.Generator(np.random.Philox(key=seed))
    sums = random.multinomial(len(table), np.full(len(table), 1 / len(table)), NUM_RESAMPLES) @ table
    sums = sums[sums[:, 1] > 0]
    low, high = np.quantile(sums[:, 0] / sums[:, 1], [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return Rate(float(tokens / steps), float(low), float(high), int(steps))


def measure(
    package: Path,
    draft: DraftSpec,
    prompts: Sequence[Sequence[int]],
    num_new_tokens: int,
    num_draft_tokens: int,
    found: Path,
    selection: Selection | None = None,
    tree: int = 0,
) -> Rate:
    """Decode after every prompt with one draft, whose proposals all have one length.

    Args:
        package: whose target decodes.
        draft: what drafts for it.
        prompts: token ids.
        num_new_tokens: of a prompt, within which a step that counts begins.
        num_draft_tokens: of every proposal.
        found: a file with a line of JSON a prompt; those that are there are not measured again.
        selection: how tokens are chosen; None draws at temperature 1 by speculative sampling (arXiv 2211.17192), whose
            draws depend on the prompt's number.
        tree: most nodes of a proposal; 0 is a chain.
    """
    lines = found.read_text(encoding="utf-8").split("\n")[:-1] if found.is_file() else []  # the last may be torn
    with LoadedPackage(package, ["target"], drafts=[draft]) as loaded:
        hierarchy = Hierarchy(loaded.levels, [num_draft_tokens], [0.0], tree or "chain")
        for number in range(len(lines), len(prompts)):
            chosen = selection or Selection(Sampling(1.0), "rejection", number)
            made = hierarchy.generate(prompts[number], num_new_tokens + num_draft_tokens, selection=chosen)
            lines.append(json.dumps(whole_steps(made, num_new_tokens)))
            found.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return rate([tuple(json.loads(line)) for line in lines[: len(prompts)]])


def whole_steps(made: Generation, num_new_tokens: int) -> tuple[int, int]:
    """Tokens and number of the steps that count; the first step evaluates the prompt itself, without a draft."""
    draft = made.trace.statistics[1].name
    _, *steps = (entry for entry in made.trace.entries if entry.level == draft)
    num_tokens, num_steps = 1, 0
    for entry in steps:
        if num_tokens >= num_new_tokens:
            break
        num_tokens, num_steps = num_tokens + entry.num_accepted + 1, num_steps + 1
    return num_tokens - 1, num_steps
