"""What a run did, per level: the counts of every acceptance rate and speed-up; and running means of its times."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from mxconv.arrays import F32


@dataclass(frozen=True)
class RoundTree:
    """A proposal to a level and what became of it; a chain is a tree too.

    Args:
        draft: the name of the level that proposed; None where none was queried.
        tokens: of the proposal's nodes, parents before children.
        parents: each node's parent among them, or -1.
        probabilities: each node's own; empty where the draft has none.
        emitted: the level's own tokens: the accepted ones, and one more.
    """

    draft: str | None
    tokens: Sequence[int]
    parents: Sequence[int]
    probabilities: Sequence[float]
    emitted: Sequence[int]

    @cached_property
    def path(self) -> list[int]:
        """The accepted nodes: siblings carry different tokens, so the emitted ones name them."""
        nodes = {pair: node for node, pair in enumerate(zip(self.parents, self.tokens, strict=True))}
        path: list[int] = []
        for token in self.emitted[:-1]:
            path.append(nodes[path[-1] if path else -1, token])
        return path


@dataclass
class LevelStatistics:
    """Counts of one level over a run. `num_proposed` and `num_accepted` are of tokens judged by the level above."""

    name: str
    num_forwards: int = 0
    num_proposed: int = 0
    num_accepted: int = 0
    num_asked: int = 0  # tokens that the level above requested
    num_nodes: int = 0  # proposed, all branches of trees counted; `num_proposed` counts their longest paths
    seconds: float = 0.0  # in this level's own forward passes
    proposed_by_position: list[int] = field(default_factory=list)  # [i]: proposals with a token at place i
    accepted_by_position: list[int] = field(default_factory=list)  # [i]: those of which it was accepted
    nodes_by_depth: list[int] = field(default_factory=list)  # [i]: of `num_nodes`, those at place i of their path
    trees: list[RoundTree] | None = None  # what was proposed to this level, by round; None where they are not recorded
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)  # in seconds

    @property
    def totals(self) -> tuple[int, int, int, int, float, int]:
        """Counts of a trace's entry, in its order: tokens requested, proposed, accepted; forwards, seconds, nodes."""
        tokens = self.num_asked, self.num_proposed, self.num_accepted
        return *tokens, self.num_forwards, self.seconds, self.num_nodes

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed; None where nothing was proposed (the target, or an unused level)."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """[i]: of the proposals with a token at place i, the share in which it was accepted."""
        accepted = self.accepted_by_position + [0] * len(self.proposed_by_position)
        return [mine / of for mine, of in zip(accepted, self.proposed_by_position, strict=False)]

    def count(self, num_asked: int, num_proposed: int, num_accepted: int, widths: Sequence[int] | None = None) -> None:
        """Count one proposal of this level, as the level above judged it.

        Args:
            num_asked: tokens requested.
            num_proposed: tokens of the proposal; of a tree, of its longest path.
            num_accepted: of these.
            widths: of a tree, the nodes at each depth; None for a chain.
        """
        widths = [1] * num_proposed if widths is None else widths
        self.num_asked += num_asked
        self.num_proposed += num_proposed
        self.num_accepted += num_accepted
        self.num_nodes += sum(widths)
        for counts, added in (
            (self.nodes_by_depth, widths),
            (self.proposed_by_position, [1] * num_proposed),
            (self.accepted_by_position, [1] * num_accepted),
        ):
            counts += [0] * (len(added) - len(counts))
            for place, number in enumerate(added):
                counts[place] += number

    @contextmanager
    def timed_pass(self) -> Iterator[None]:
        """Count and time one forward pass."""
        begin = self.clock()
        try:
            yield
        finally:
            self.seconds += self.clock() - begin
            self.num_forwards += 1


class TraceEntry(NamedTuple):
    """One level's part in one round of the target."""

    round: int
    level: str
    num_asked: int  # draft tokens the level above chose to ask for; 0 where it chose not to draft
    num_proposed: int
    num_accepted: int
    num_forwards: int
    seconds: float
    num_nodes: int = 0  # proposed, all branches of trees counted
    tree: RoundTree | None = None  # in the target's entry, where the trace records trees


@dataclass
class Trace:
    """Every round of a run, cut into per-level differences.

    Args:
        statistics: of the levels, the target first.
        records_trees: keep what was proposed to the target in every round; set it before the first.
    """

    statistics: list[LevelStatistics]
    entries: list[TraceEntry] = field(default_factory=list)
    num_rounds: int = 0
    records_trees: bool = False
    _before: list[tuple[int, int, int, int, float, int]] = field(default_factory=list)

    def begin_round(self) -> None:
        self._before = [level.totals for level in self.statistics]
        self.statistics[0].trees = [] if self.records_trees else None

    def end_round(self) -> None:
        for level, before in zip(self.statistics, self._before, strict=True):
            added = [now - then for now, then in zip(level.totals, before, strict=True)]
            tree = level.trees[-1] if level.trees and level is self.statistics[0] else None
            self.entries.append(TraceEntry._make([self.num_rounds, level.name, *added, tree]))
        self.num_rounds += 1


class Step(NamedTuple):
    """The outcome of one round: tokens that this level itself would have chosen, with the logits that chose them."""

    tokens: list[int]
    logits: F32  # (len(tokens), vocab_size): the model's own, before penalties
    guessed_by: Sequence[str | None] = ()  # of each token whose guess it was; None: the level chose it without one

    def until(self, stop_tokens: Collection[int]) -> "Step":
        """The tokens up to and with the first of some; without logits of others."""
        place = next((place for place, token in enumerate(self.tokens) if token in stop_tokens), None)
        if place is None:
            return self
        stop = place + 1
        return Step(self.tokens[:stop], self.logits[:stop], self.guessed_by[:stop])


Ending = Literal["length", "stop", "interrupted", "error"]


@dataclass
class Generation:
    """What one prompt became; it grows while it is decoded."""

    trace: Trace
    token_ids: list[int] = field(default_factory=list)  # new ones, a final stop token included
    seconds: float = 0.0
    prompt_seconds: float = 0.0  # of these, until the first token
    ending: Ending = "interrupted"

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def decoding_tokens_per_second(self) -> float | None:
        """The rate after the first token, which comes with the prompt; None where there is no second one."""
        seconds, num_tokens = self.seconds - self.prompt_seconds, len(self.token_ids) - 1
        return num_tokens / seconds if num_tokens > 0 and seconds > 0 else None


MEMORY = 0.98  # what is left in a round of the weight of all that was known before
MOST_UNUSUAL = 3.0  # times as long as usual; what takes longer was interrupted from outside
FEWEST_CHANCES, MOST_CHANCES = 4.0, 16.0  # samples that stay of a chance near 0 or 1, and of an even one


@dataclass
class RunningMean:
    """A running mean. What was seen long ago counts less, but as `least` samples: a single new one decides nothing."""

    value: float = 0.0
    weight: float = 0.0
    least: float = 1.0

    def fade(self, num_rounds: int = 1) -> None:
        self.weight = max(self.weight * MEMORY**num_rounds, min(self.weight, self.least))

    def add(self, total: float, count: float = 1.0) -> None:
        if count:
            self.value = (self.value * self.weight + total) / (self.weight + count)
            self.weight += count

    def add_seconds(self, seconds: float) -> None:
        self.add(min(seconds, MOST_UNUSUAL * self.value) if self.weight else seconds)


@dataclass
class Chance(RunningMean):
    """The running mean of what happens or not; few samples tell as much of what is rare or certain."""

    def fade(self, num_rounds: int = 1) -> None:
        many = MOST_CHANCES * 4 * self.value * (1 - self.value) if num_rounds == 1 else 0.0
        self.least = max(FEWEST_CHANCES, many)  # after a pause few are left: texts change
        super().fade(num_rounds)
