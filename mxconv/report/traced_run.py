"""A run read from its trace: prompts, verification steps (rounds), and the tree of tokens that each one verified.

The lines are those that mxconv/speculation/trace_lines.py writes; traces of earlier versions lack trees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from mxconv.cost.trace import REMEDY, ProposedTree, TraceLine, trace_lines
from mxconv.errors import MxconvError

MOST_BYTES = 64_000_000


@dataclass(frozen=True)
class TracedRound:
    """One verification step of the target, with a line for each level, the target's first."""

    lines: list[TraceLine]

    @property
    def number(self) -> int:
        return self.lines[0].round

    @property
    def tree(self) -> ProposedTree | None:
        return self.lines[0].tree

    @property
    def text(self) -> str:
        return self.lines[0].text

    @property
    def num_tokens(self) -> int:
        """Tokens added to the text; older traces leave them to be counted from the first draft's accepted ones."""
        recorded = self.lines[0].num_tokens
        return 1 + sum(line.num_accepted for line in self.lines[1:2]) if recorded is None else recorded


@dataclass(frozen=True)
class PromptRun:
    """One prompt and its rounds; the text is empty where the trace has none."""

    number: int
    text: str
    rounds: list[TracedRound]


@dataclass(frozen=True)
class LevelSum:
    """The sums of a level over all rounds."""

    name: str
    num_forwards: int
    num_proposed: int  # of trees, their longest paths
    num_nodes: int
    num_accepted: int
    seconds: float


@dataclass(frozen=True)
class DepthSum:
    """The sums of a depth over all trees that reached it."""

    num_rounds: int  # in which something was proposed at this depth
    num_nodes: int
    num_accepted: int


@dataclass(frozen=True)
class TracedRun:
    """A run: the prompts of a trace."""

    name: str
    prompts: list[PromptRun]

    @property
    def rounds(self) -> Iterator[TracedRound]:
        return (found for prompt in self.prompts for found in prompt.rounds)

    @property
    def num_rounds(self) -> int:
        return sum(len(prompt.rounds) for prompt in self.prompts)

    @property
    def num_tokens(self) -> int:
        return sum(found.num_tokens for found in self.rounds)

    @property
    def has_trees(self) -> bool:
        return any(found.tree is not None for found in self.rounds)

    @property
    def levels(self) -> list[LevelSum]:
        """The sums of each level, the target first."""
        by_name: dict[str, list[TraceLine]] = {}
        for found in self.rounds:
            for line in found.lines:
                by_name.setdefault(line.level, []).append(line)
        return [
            LevelSum(
                name,
                sum(line.num_forwards for line in lines),
                sum(line.num_proposed for line in lines),
                sum(line.num_rows for line in lines),
                sum(line.num_accepted for line in lines),
                sum(line.seconds for line in lines),
            )
            for name, lines in by_name.items()
        ]

    @property
    def depths(self) -> dict[str, list[DepthSum]]:
        """The sums of each depth by the draft that proposed to the target."""
        trees: dict[str, list[ProposedTree]] = {}
        for found in self.rounds:
            if found.tree is not None and found.tree.draft is not None:
                trees.setdefault(found.tree.draft, []).append(found.tree)
        return {draft: _depths(own) for draft, own in trees.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "num_prompts": len(self.prompts),
            "num_rounds": self.num_rounds,
            "num_tokens": self.num_tokens,
            "has_trees": self.has_trees,
            "levels": [vars(level) for level in self.levels],
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
    prompts = []
    for number, group in groupby(rounds, key=lambda found: found.lines[0].prompt):
        own = list(group)
        prompts.append(PromptRun(number, own[0].lines[0].prompt_text, own))
    return TracedRun(str(path), prompts)


def _rounds(path: Path) -> Iterator[TracedRound]:
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
        yield TracedRound(list(lines.values()))


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
