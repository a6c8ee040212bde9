"""How many tokens a level requests of which draft, round by round, and what it learns from every round.

It learns prices: a pass by its number of rows is nearly constant while memory is the limit, then linear. Of texts that
are decoded side by side each pays its part.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.passes import ALONE, JointPass, Load
from mxconv.speculation.statistics import RunningMean

ROW_SHARE = 0.04  # the price of a further row in passes of the narrowest width, until wider passes were measured
UNEXPECTED = 1.3  # times the expected price
# widths up to which passes are averaged together
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@dataclass
class RowPrices:
    """Running means of a pass's seconds by width, with lines between them.

    More rows never cost less: means that contradict this are replaced by their common mean (isotonic regression), in
    which a width that was measured seldom counts little. What was measured in a bad moment is not believed for long:
    where one mean moves, the machine's speed may have, so means of fewer passes move along; and what further rows are
    expected to cost counts as a pass.
    """

    means: dict[int, tuple[RunningMean, RunningMean]] = field(default_factory=dict)  # of rows and of seconds
    curve: list[tuple[float, float]] = field(default_factory=list)  # rows and seconds, both ascending

    def add(self, num_rows: float, seconds: float) -> None:
        """Learn the time of a pass. The first of a width is not believed if it is far dearer than expected: it may have
        been interrupted, and what is that dear would not be tried again.
        """
        if num_rows > WIDTHS[-1]:
            return
        width = WIDTHS[bisect_left(WIDTHS, num_rows)]
        is_new = width not in self.means
        rows_mean, seconds_mean = self.means.setdefault(width, (RunningMean(), RunningMean()))
        if is_new and self.curve and seconds > UNEXPECTED * self.seconds(num_rows):
            return
        rows_mean.fade()
        seconds_mean.fade()
        rows_mean.add(num_rows)
        before, weight = seconds_mean.value, seconds_mean.weight
        seconds_mean.add_seconds(seconds)
        for _, other in self.means.values():
            if before and other is not seconds_mean:
                other.value *= (seconds_mean.value / before) ** (weight / (weight + other.weight))
        pools: list[tuple[float, float, float]] = []  # weight, rows, seconds
        for _, (rows_mean, seconds_mean) in sorted(self.means.items()):
            weight, rows, price = seconds_mean.weight, rows_mean.value, seconds_mean.value
            if pools:
                expected = pools[0][2] * (1 + ROW_SHARE * (rows / pools[0][1] - 1))
                price -= max(price - expected, 0.0) / (weight + 1)
            while weight and pools and pools[-1][2] >= price:
                others, other_rows, other_price = pools.pop()
                part, weight = others / (others + weight), others + weight
                rows, price = rows + part * (other_rows - rows), price + part * (other_price - price)
            pools += [(weight, rows, price)] if weight else []
        self.curve = [(rows, seconds) for _, rows, seconds in pools]

    def seconds(self, num_rows: float) -> float:
        """The price of a pass; beyond the widest one that was measured, rows cost no less than the last ones did."""
        at = bisect_left(self.curve, (num_rows,))
        if at == 0:
            return self.curve[0][1] if self.curve else 0.0
        last = min(at, len(self.curve) - 1)
        (rows, seconds), (wider, dearer) = self.curve[max(last - 1, 0)], self.curve[last]
        slope = (dearer - seconds) / (wider - rows) if last else ROW_SHARE * dearer
        if at > last > 0:
            slope = max(slope, ROW_SHARE / 4 * self.curve[0][1])
        rows, seconds = self.curve[at - 1]
        return seconds + slope * (num_rows - rows)

    @property
    def widest(self) -> float:
        """Rows of the widest passes that were measured; 1 where none was."""
        return max((rows.value for rows, _ in self.means.values()), default=1.0)

    def knows(self, num_rows: int) -> bool:
        """Whether passes of about so many rows were measured."""
        return num_rows > WIDTHS[-1] or WIDTHS[bisect_left(WIDTHS, num_rows)] in self.means


@dataclass(frozen=True)
class Prices:
    """Prices of a level's passes for one text under a load, all texts having as many rows as it."""

    of_all: RowPrices
    load: Load
    num_sharers: float = 0.0  # texts that share a draft's passes; 0 is all

    def rows(self, number: float) -> float:
        """Seconds of so many rows. Prompts have to be read in any case: beside them, the first row costs what it costs
        without them, for that is what its token saves later, and a further one as much as the pass's rows on average.
        """
        count, others = self.load.num_texts, self.load.other_rows
        if not others:
            return self.of_all.seconds(count * number) / count
        all_rows = count * number + others
        return Prices(self.of_all, Load(count)).plain + (number - 1) * self.of_all.seconds(all_rows) / all_rows

    @cached_property
    def plain(self) -> float:
        """Seconds of one row."""
        return self.rows(1)


@dataclass(frozen=True)
class Choice:
    """A draft, its number with the next level being 0, and the limits of its proposal; 0 tokens are plain decoding."""

    draft: int
    limits: TreeLimits
    is_resting: bool = False

    @property
    def num_tokens(self) -> int:
        """The most tokens of a path."""
        return self.limits.most_depth


PLAIN = Choice(0, TreeLimits.chain(0))
RESTING = Choice(0, TreeLimits.chain(0), is_resting=True)  # plain decoding of which nothing is learned


class Outcome(NamedTuple):
    """The result of a round."""

    num_proposed: int  # tokens that the draft proposed; of a tree, all nodes
    num_accepted: int
    num_evaluated: int  # tokens that the level's pass evaluated
    draft_seconds: float  # until the draft had proposed
    level_seconds: float  # of the level's own pass and judgement
    depth: int = 0  # tokens of the longest path that was proposed
    load: Load = ALONE  # what the level's pass carried
    joint: JointPass | None = None  # the level's pass, if shared with other texts; the seconds are then shares of it
    draft_sharers: float = 1.0  # how many texts shared the draft's passes, on average


class Pace(Protocol):
    """Chooses a draft and at most `limit` tokens, at least one, in every round, and learns from it.

    `of_text` gives the pace of one text among several that are decoded side by side; they share what they learn.
    """

    def of_text(self) -> "Pace": ...
    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        """The choice; `unread` are the numbers of tokens that each draft has to read before it can propose."""
        ...

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        """Whether it would choose plain decoding in so many rounds, in which it need not be queried."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class FixedPace:
    """Always request the same number of the next level; with `num_nodes`, a tree of so many."""

    num_tokens: int
    num_nodes: int = 0

    def of_text(self) -> "FixedPace":
        return self

    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        count = min(self.num_tokens, limit)
        return Choice(0, TreeLimits(count, [0.0] * self.num_nodes) if self.num_nodes else TreeLimits.chain(count))

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        return False

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass
