"""Traces of real runs: what `mxconv generate --trace` wrote, one JSON line a round and level.

Keys that are read: prompt, round, level, num_proposed, num_accepted, num_forwards, seconds; others are left alone. A
prompt's first round evaluates the prompt itself and is left out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.cost.speedup import expected_tokens
from mxconv.errors import MxconvError

MAX_TRACE_BYTES = 1_000_000_000
COUNTS = ("prompt", "round", "num_proposed", "num_accepted", "num_forwards")


@dataclass(frozen=True)
class TraceLine:
    prompt: int
    round: int
    level: str
    num_proposed: int
    num_accepted: int
    num_forwards: int
    seconds: float


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

    @property
    def seconds_per_forward(self) -> float:
        return self.seconds / self.num_forwards if self.num_forwards else 0.0


@dataclass(frozen=True)
class Trace:
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


def read_trace(path: Path) -> Trace:
    """Read and sum up one file.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: a line is no trace line, or nothing is behind the prompts.
    """
    num_bytes = check_regular_file(path)
    if num_bytes > MAX_TRACE_BYTES:
        raise MxconvError(f"{path}: {num_bytes:,} bytes; at most {MAX_TRACE_BYTES:,} are read. Trace fewer prompts.")
    with open_file(path) as file:
        raw = file.read(num_bytes)
    lines = [_line(text, f"{path}: line {number}") for number, text in enumerate(raw.splitlines(), 1) if text.strip()]
    rounds = [line for line in lines if line.round > 0]
    if not rounds:
        raise MxconvError(f"{path}: no round behind a prompt's first; at least one is required. Trace more new tokens.")
    return summarize(rounds, path.stem)


def summarize(lines: Sequence[TraceLine], name: str) -> Trace:
    """Sums by level; levels stand in the order in which a round has them, the target first."""
    names = list(dict.fromkeys(line.level for line in lines))
    by_level = {level: [line for line in lines if line.level == level] for level in names}
    num_rounds = len({(line.prompt, line.round) for line in lines})
    levels: list[LevelTrace] = []
    for level, own in by_level.items():
        proposed, accepted = sum(line.num_proposed for line in own), sum(line.num_accepted for line in own)
        above = levels[-1].num_forwards if levels else 0
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
            )
        )
    num_tokens = num_rounds + (levels[1].num_accepted if len(levels) > 1 else 0)
    return Trace(name, levels, num_rounds, num_tokens)


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
    for place in range(max(line.num_proposed for line in lines)):
        reached = [line for line in lines if line.num_proposed > place and line.num_accepted >= place]
        if len(reached) < 10:
            break
        rates.append(sum(line.num_accepted > place for line in reached) / len(reached))
    return rates


def _line(text: bytes, label: str) -> TraceLine:
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MxconvError(f"{label}: no JSON ({error}); a trace line is required. {REMEDY}") from error
    if not isinstance(members, dict):
        raise MxconvError(f"{label}: {str(members)[:80]}; a JSON object is required. {REMEDY}")
    for key in COUNTS:
        value = members.get(key)
        if type(value) is not int or value < 0:
            raise MxconvError(f"{label}: {key} is {value!r}; an integer from 0 on is required. {REMEDY}")
    seconds, level = members.get("seconds"), members.get("level")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < inf:
        raise MxconvError(f"{label}: seconds is {seconds!r}; a number from 0 on is required. {REMEDY}")
    if not isinstance(level, str):
        raise MxconvError(f"{label}: level is {level!r}; a name is required. {REMEDY}")
    return TraceLine(**{key: members[key] for key in COUNTS}, level=level, seconds=float(seconds))


REMEDY = "Take a file that `mxconv generate --trace` wrote."
