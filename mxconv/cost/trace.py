"""Traces of real runs: what `mxconv generate --trace` wrote, one JSON line a round and level.

A round is a verification step of the target. The members that are read are those of `TraceLine`; others are left alone.
A prompt's first round evaluates the prompt itself and is left out of the sums.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, model_validator

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.cost.speedup import MOST_DRAFT_TOKENS, acceptance_of
from mxconv.errors import MxconvError

MAX_TRACE_BYTES = 1_000_000_000
MOST_NODES = 1024  # of a round
REMEDY = "Take a file that `mxconv generate --trace` wrote."
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Token = Annotated[int, Field(ge=0, le=1 << 31)]
Share = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]


class ProposedTree(BaseModel, frozen=True, strict=True):
    """The tokens proposed in a round: nodes with parents before children; `path` are the accepted ones.

    `emitted` is what was added to the text: the tokens of the path and one of the target's own, or fewer where the
    text ended.
    """

    draft: str | None = None  # None: no draft was queried
    tokens: list[Token] = Field([], max_length=MOST_NODES)
    parents: list[Annotated[int, Field(ge=-1)]] = Field([], max_length=MOST_NODES)  # -1: follows the text so far
    probabilities: list[Share | None] = Field([], max_length=MOST_NODES)  # empty where the draft has none
    path: list[Count] = Field([], max_length=MOST_NODES)
    emitted: list[Token] = Field([], max_length=MOST_NODES)
    texts: list[str] = Field([], max_length=MOST_NODES)  # labels of the nodes; empty where the trace has none
    emitted_texts: list[str] = Field([], max_length=MOST_NODES)

    @model_validator(mode="after")
    def _fits_together(self) -> "ProposedTree":
        """Check the lengths of all lists, and that the path goes down the tree through the emitted tokens."""
        for name, values, count in (
            ("parents", self.parents, len(self.tokens)),
            ("probabilities", self.probabilities, len(self.tokens)),
            ("texts", self.texts, len(self.tokens)),
            ("emitted_texts", self.emitted_texts, len(self.emitted)),
        ):
            if len(values) != count and (values or name == "parents"):
                raise ValueError(f"{name} has {len(values):,} values; {count}, one for each token, are required")
        for node, parent in enumerate(self.parents):
            if parent >= node:
                raise ValueError(f"parents[{node}] is {parent}; an earlier node, or -1, is required")
        if len(self.emitted) > len(self.path) + 1:
            raise ValueError(f"emitted has {len(self.emitted)} values; at most {len(self.path) + 1} are required")
        before = -1
        for place, node in enumerate(self.path):
            if node >= len(self.tokens) or self.parents[node] != before:
                raise ValueError(f"path[{place}] is {node}; a child of node {before} is required")
            if place < len(self.emitted) and self.emitted[place] != self.tokens[node]:
                raise ValueError(f"emitted[{place}] is {self.emitted[place]}; token {self.tokens[node]} is required")
            before = node
        return self

    @property
    def num_accepted(self) -> int:
        """Accepted nodes that were added to the text."""
        return min(len(self.path), len(self.emitted))

    @property
    def own(self) -> int | None:
        """Index of the target's own token in `emitted`; None where the text ended before it."""
        return len(self.path) if len(self.emitted) > len(self.path) else None

    @property
    def widths(self) -> list[int]:
        """The number of nodes at each depth."""
        depths: list[int] = []
        widths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            widths += [0] * (depths[-1] + 1 - len(widths))
            widths[depths[-1]] += 1
        return widths


class TraceLine(BaseModel, frozen=True, strict=True):
    """A level in a round. Early traces lack all that has a default."""

    prompt: Count
    round: Count
    level: str
    num_proposed: Count  # of a tree, its longest path
    num_accepted: Count
    num_forwards: Count
    seconds: Annotated[float, Field(ge=0, le=1 << 53, allow_inf_nan=False)]
    num_nodes: Count | None = None  # proposed, all branches; as many as were proposed, where a trace does not say
    num_tokens: Count | None = None  # that the target added to the text; else one more than its draft's accepted ones
    text: str = ""  # that the round added; of the target's line, as the next two
    prompt_text: str = ""
    cpu: str = ""  # the processor that decoded, in a prompt's first round
    tree: ProposedTree | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "TraceLine":
        if self.num_rows < self.num_proposed:
            raise ValueError(f"num_nodes is {self.num_rows}; at least num_proposed, {self.num_proposed}, is required")
        if self.tree is not None and self.num_tokens not in (None, len(self.tree.emitted)):
            raise ValueError(f"num_tokens is {self.num_tokens}; {len(self.tree.emitted)}, as emitted, is required")
        return self

    @property
    def num_rows(self) -> int:
        """Proposed nodes: rows of the passes that verified them."""
        return self.num_proposed if self.num_nodes is None else self.num_nodes


@dataclass(frozen=True)
class LevelTrace:
    """A level over all rounds but the prompts' own. The target comes first and proposes nothing."""

    name: str
    num_forwards: int
    num_proposed: int
    num_accepted: int
    seconds: float
    num_draft_tokens: float  # proposed per pass of the level above
    acceptance: float  # the probability that gives as many accepted tokens a pass, by Leviathan
    acceptance_by_position: list[float]  # of the first draft: place in the round, while at least ten rounds are as long
    num_nodes: int = 0  # proposed: of trees all, where num_proposed counts their longest paths
    num_rows: float = 0.0  # nodes per pass of the level above

    @property
    def rows_per_token(self) -> float:
        """Nodes over the tokens of the longest paths: 1 of chains."""
        return self.num_nodes / self.num_proposed if self.num_proposed else 1.0

    @property
    def seconds_per_forward(self) -> float:
        return self.seconds / self.num_forwards if self.num_forwards else 0.0


@dataclass(frozen=True)
class TraceSummary:
    """A run by one strategy."""

    name: str
    levels: list[LevelTrace]
    num_rounds: int
    num_tokens: int
    cpu: str = ""  # the processor; empty where the trace does not say

    @property
    def seconds(self) -> float:
        """In forward passes, of all levels."""
        return sum(level.seconds for level in self.levels)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


def read_trace(path: Path) -> TraceSummary:
    """Read and sum up one file.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: a line is no trace line, or nothing comes after the prompts.
    """
    lines = [line for _, line in trace_lines(path)]
    rounds = [line for line in lines if line.round > 0]
    if not rounds:
        raise MxconvError(f"{path}: no round after a prompt's first; at least one is required. Trace more new tokens.")
    return replace(summarize(rounds, path.stem), cpu=next((line.cpu for line in lines if line.cpu), ""))


def trace_lines(path: Path, most_bytes: int = MAX_TRACE_BYTES) -> Iterator[tuple[str, TraceLine]]:
    """Every line with a label for messages.

    Args:
        path: of the trace.
        most_bytes: that are read.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: it is larger, or a line is none that `generate --trace` writes.
    """
    num_bytes = check_regular_file(path)
    if num_bytes > most_bytes:
        raise MxconvError(f"{path}: {num_bytes:,} bytes; at most {most_bytes:,} are read. Trace fewer prompts.")
    with open_file(path) as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield (label := f"{path}: line {number}"), _line(text, label)


def _line(text: bytes, label: str) -> TraceLine:
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MxconvError(f"{label}: no JSON ({error}); a trace line is required. {REMEDY}") from error
    if not isinstance(members, dict):
        raise MxconvError(f"{label}: {str(members)[:80]}; a JSON object is required. {REMEDY}")
    try:
        return TraceLine.model_validate(members)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            problem = f"{place} is missing; it is required"
        elif first["type"] == "value_error":
            problem = f"{place}: {first['ctx']['error']}".removeprefix(": ")
        else:
            required = first["msg"].removeprefix("Input should be ").removeprefix("List should have ")
            problem = f"{place} is {first['input']!r:.80}; {required} is required"
        raise MxconvError(f"{label}: {problem}. {REMEDY}") from error


def summarize(lines: Sequence[TraceLine], name: str) -> TraceSummary:
    """Sum up by level; levels are in the order in which a round has them, the target first."""
    names = list(dict.fromkeys(line.level for line in lines))
    by_level = {level: [line for line in lines if line.level == level] for level in names}
    rounds: dict[tuple[int, int], list[TraceLine]] = {}
    for line in lines:
        rounds.setdefault((line.prompt, line.round), []).append(line)
    levels: list[LevelTrace] = []
    for level, own in by_level.items():
        proposed, accepted = sum(line.num_proposed for line in own), sum(line.num_accepted for line in own)
        above = levels[-1].num_forwards if levels else 0
        nodes = sum(line.num_rows for line in own)
        levels.append(
            LevelTrace(
                name=level,
                num_forwards=sum(line.num_forwards for line in own),
                num_proposed=proposed,
                num_accepted=accepted,
                seconds=sum(line.seconds for line in own),
                num_draft_tokens=proposed / above if above else 0.0,
                acceptance=acceptance_of(accepted / above, proposed / above) if above else 0.0,
                acceptance_by_position=_by_position(own) if len(levels) == 1 else [],
                num_nodes=nodes,
                num_rows=nodes / above if above else 0.0,
            )
        )
    num_tokens = 0
    for target, *drafts in rounds.values():  # early traces lack the number of tokens
        told = target.num_tokens
        num_tokens += 1 + sum(draft.num_accepted for draft in drafts[:1]) if told is None else told
    return TraceSummary(name, levels, len(rounds), num_tokens)


def _by_position(lines: Sequence[TraceLine]) -> list[float]:
    """The share of tokens accepted at each place, of the rounds that accepted all before it."""
    rates = []
    for place in range(min(max(line.num_proposed for line in lines), MOST_DRAFT_TOKENS)):
        reached = [line for line in lines if line.num_proposed > place and line.num_accepted >= place]
        if len(reached) < 10:
            break
        rates.append(sum(line.num_accepted > place for line in reached) / len(reached))
    return rates
