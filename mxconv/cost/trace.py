"""Traces of real runs: what `mxconv generate --trace` wrote, one JSON line a round and level.

Keys that are read: prompt, round, level, num_proposed, num_accepted, num_forwards, seconds, and where they are there
num_nodes (of trees, whose longest path num_proposed counts) and num_tokens (that the target's round added to the text);
others are left alone. A prompt's first round evaluates the prompt itself and is left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.cost.speedup import MOST_DRAFT_TOKENS, expected_tokens
from mxconv.errors import MxconvError

MAX_TRACE_BYTES = 1_000_000_000
COUNTS = ("prompt", "round", "num_proposed", "num_accepted", "num_forwards")
MOST = 1 << 53  # of any count
LATER_COUNTS = ("num_nodes", "num_tokens")  # that early traces lack


@dataclass(frozen=True)
class TraceLine:
    prompt: int
    round: int
    level: str
    num_proposed: int
    num_accepted: int
    num_forwards: int
    seconds: float
    num_nodes: int | None = None  # as many as were proposed, where a trace does not say
    num_tokens: int | None = None  # of the target's round; one more than its draft's accepted ones likewise

    @property
    def num_rows(self) -> int:
        """Proposed nodes: rows of the passes that judged them."""
        return self.num_proposed if self.num_nodes is None else self.num_nodes


@dataclass(frozen=True)
class LevelTrace:
    """A level over all rounds behind the prompts'. The target comes first and proposes nothing."""

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
        MxconvError: a line is no trace line, or nothing is behind the prompts.
    """
    lines = [trace_line(members, label) for label, members in trace_members(path)]
    rounds = [line for line in lines if line.round > 0]
    if not rounds:
        raise MxconvError(f"{path}: no round behind a prompt's first; at least one is required. Trace more new tokens.")
    return summarize(rounds, path.stem)


def trace_members(path: Path, most_bytes: int = MAX_TRACE_BYTES) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON object of each line with a label for messages.

    Args:
        path: of the trace.
        most_bytes: that are read.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: it is larger, or a line is no JSON object.
    """
    num_bytes = check_regular_file(path)
    if num_bytes > most_bytes:
        raise MxconvError(f"{path}: {num_bytes:,} bytes; at most {most_bytes:,} are read. Trace fewer prompts.")
    with open_file(path) as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield (label := f"{path}: line {number}"), _members(text, label)


def summarize(lines: Sequence[TraceLine], name: str) -> TraceSummary:
    """Sums by level; levels stand in the order in which a round has them, the target first."""
    names = list(dict.fromkeys(line.level for line in lines))
    by_level = {level: [line for line in lines if line.level == level] for level in names}
    num_rounds = len({(line.prompt, line.round) for line in lines})
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
    counted = [line.num_tokens for line in lines if line.level == names[0] and line.num_tokens is not None]
    num_tokens = num_rounds + (levels[1].num_accepted if len(levels) > 1 else 0)
    if len(counted) == num_rounds:  # also where the target asked another draft than the first
        num_tokens = sum(counted)
    return TraceSummary(name, levels, num_rounds, num_tokens)


def acceptance_of(num_accepted: float, num_draft_tokens: float) -> float:
    """The probability that yields so many accepted tokens a round: the inverse of `expected_tokens`."""
    if num_draft_tokens == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, num_draft_tokens) - 1 >= num_accepted else (middle, high)
    return high


def _by_position(lines: Sequence[TraceLine]) -> list[float]:
    """Of the rounds that proposed a token at a place and accepted all before it, the share that accepted it too."""
    rates = []
    for place in range(min(max(line.num_proposed for line in lines), MOST_DRAFT_TOKENS)):
        reached = [line for line in lines if line.num_proposed > place and line.num_accepted >= place]
        if len(reached) < 10:
            break
        rates.append(sum(line.num_accepted > place for line in reached) / len(reached))
    return rates


def trace_line(members: dict[str, Any], label: str) -> TraceLine:
    """A line's counts.

    Raises:
        MxconvError: one is missing, or no count.
    """
    for key in (*COUNTS, *(key for key in LATER_COUNTS if key in members)):
        value = members.get(key)
        if type(value) is not int or not 0 <= value <= MOST:
            raise MxconvError(f"{label}: {key} is {value!r:.80}; an integer from 0 to 2^53 is required. {REMEDY}")
    seconds, level = members.get("seconds"), members.get("level")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= MOST:
        raise MxconvError(f"{label}: seconds is {seconds!r:.80}; a number from 0 to 2^53 is required. {REMEDY}")
    if not isinstance(level, str):
        raise MxconvError(f"{label}: level is {level!r:.80}; a name is required. {REMEDY}")
    found = TraceLine(
        **{key: members[key] for key in COUNTS},
        level=level,
        seconds=float(seconds),
        num_nodes=members.get("num_nodes"),
        num_tokens=members.get("num_tokens"),
    )
    if found.num_rows < found.num_proposed:
        raise MxconvError(
            f"{label}: num_nodes is {found.num_rows}; at least num_proposed, {found.num_proposed}, is "
            f"required. {REMEDY}"
        )
    return found


def _members(text: bytes, label: str) -> dict[str, Any]:
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MxconvError(f"{label}: no JSON ({error}); a trace line is required. {REMEDY}") from error
    if not isinstance(members, dict):
        raise MxconvError(f"{label}: {str(members)[:80]}; a JSON object is required. {REMEDY}")
    return members


REMEDY = "Take a file that `mxconv generate --trace` wrote."
