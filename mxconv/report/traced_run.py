"""A run read from its trace: verification steps (rounds) by prompt, and the tree of tokens that each one verified.

The lines are those that mxconv/speculation/trace_lines.py writes; traces of earlier versions lack trees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from mxconv.cost.trace import REMEDY, ProposedTree, TraceLine, TraceSummary, summarize, trace_lines
from mxconv.errors import MxconvError

MOST_BYTES = 64_000_000


@dataclass(frozen=True)
class DepthSum:
    """The sums of a depth over all trees that reached it."""

    num_rounds: int  # in which something was proposed at this depth
    num_nodes: int
    num_accepted: int


@dataclass(frozen=True)
class TracedRun:
    """A run: its rounds, each with a line for every level, the target's first."""

    name: str
    rounds: list[list[TraceLine]]

    @cached_property
    def summary(self) -> TraceSummary:
        """The sums of each level, the prompts' own rounds included."""
        return summarize([line for lines in self.rounds for line in lines], self.name)

    @property
    def prompts(self) -> dict[int, list[TraceLine]]:
        """The target's line of every round by the number of the prompt."""
        found: dict[int, list[TraceLine]] = {}
        for target, *_ in self.rounds:
            found.setdefault(target.prompt, []).append(target)
        return found

    @property
    def has_trees(self) -> bool:
        return any(target.tree is not None for target, *_ in self.rounds)

    @property
    def depths(self) -> dict[str, list[DepthSum]]:
        """The sums of each depth by the draft that proposed to the target."""
        trees: dict[str, list[ProposedTree]] = {}
        for target, *_ in self.rounds:
            if target.tree is not None and target.tree.draft is not None:
                trees.setdefault(target.tree.draft, []).append(target.tree)
        return {draft: _depths(own) for draft, own in trees.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "num_prompts": len(self.prompts),
            "num_rounds": len(self.rounds),
            "num_tokens": self.summary.num_tokens,
            "has_trees": self.has_trees,
            "levels": [vars(level) for level in self.summary.levels],
            "depths": {draft: [vars(depth) for depth in depths] for draft, depths in self.depths.items()},
        }


def read_run(path: Path) -> TracedRun:
    """Read a trace.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: it is larger than 64 MB, has no lines, or one that `generate --trace` does not write.
    """
    rounds = list(_rounds(path))
    if not rounds:
        raise MxconvError(f"{path}: 0 lines; at least one is required. {REMEDY}")
    return TracedRun(str(path), rounds)


def _rounds(path: Path) -> Iterator[list[TraceLine]]:
    """The rounds of a trace; each level has one line in a round."""
    found = trace_lines(path, MOST_BYTES)
    for (prompt, number), group in groupby(found, key=lambda pair: (pair[1].prompt, pair[1].round)):
        lines: dict[str, TraceLine] = {}
        for label, line in group:
            if line.level in lines:
                raise MxconvError(
                    f"{label}: level {line.level!r:.80} a second time in round {number} of prompt {prompt}; each once "
                    f"is required. {REMEDY}"
                )
            lines[line.level] = line
        yield list(lines.values())


def _depths(trees: Sequence[ProposedTree]) -> list[DepthSum]:
    widths = [(tree.widths, tree.num_accepted) for tree in trees]
    return [
        DepthSum(
            sum(len(own) > depth for own, _ in widths),
            sum(own[depth] for own, _ in widths if len(own) > depth),
            sum(accepted > depth for _, accepted in widths),
        )
        for depth in range(max((len(own) for own, _ in widths), default=0))
    ]
