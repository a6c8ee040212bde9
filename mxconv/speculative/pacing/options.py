"""What may be asked of a draft, and what is expected of it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mxconv.speculative.pacing.estimates import DraftEstimate
from mxconv.speculative.pacing.level_prices import Prices
from mxconv.speculative.pacing.pace import Choice
from mxconv.speculative.pacing.tree_estimate import FIRST_NODES, TreeEstimate

UNKNOWN_COST = 0.5  # of a proposed token, in plain passes, until it was seen
MOST_FIRST_COST = 2.0  # believed of a draft's first round: reading its file for the first time is no property of it


@dataclass(frozen=True)
class Option:
    """A choice and what is expected of it.

    Args:
        known: of the draft.
        choice: what it is asked for.
        num_tokens: that the round brings.
        seconds: that it takes.
        worst_loss: seconds, if all is proposed and nothing accepted, by every text.
        catch_up_seconds: of the seconds that the draft needs before it can go on.
    """

    known: DraftEstimate
    choice: Choice
    num_tokens: float
    seconds: float
    worst_loss: float
    catch_up_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(frozen=True)
class Options:
    """Of one round.

    Args:
        prices: of the level that verifies.
        most_loss: seconds that may be lost.
        limit: tokens of which there is still use.
        most_tokens: of a proposal.
        most_nodes: of a tree.
    """

    prices: Prices
    most_loss: float
    limit: int
    most_tokens: int
    most_nodes: int

    def affordable(self, draft: int, known: DraftEstimate, num_behind: int) -> list[Option]:
        """Every length, the shortest first; or the one tree."""
        catch_up = known.catch_up_seconds(num_behind)
        if isinstance(known, TreeEstimate):
            options = self._trees(draft, known, catch_up)
        else:
            options = self._chains(draft, known, catch_up)
        return list(takewhile(lambda option: option.worst_loss <= self.most_loss, options))

    def _chains(self, draft: int, known: DraftEstimate, catch_up: float) -> Iterator[Option]:
        prices, each = self.prices, self.each(known)
        for asked, proposed, accepted in known.expected(self.longest):
            seconds = max(proposed, 1.0) * each + prices.plain + prices.further(proposed) * proposed
            tokens = 1 + accepted
            seconds += catch_up * min(tokens / self.limit, 1.0)  # its share, if this goes on to the end
            worst_loss = catch_up / prices.num_texts + asked * (each + prices.further(asked))
            yield Option(known, Choice(draft, asked), tokens, seconds, worst_loss, catch_up)

    def _trees(self, draft: int, known: TreeEstimate, catch_up: float) -> Iterator[Option]:
        """The tree that prices and what there is to lose allow, expected to be what trees were so far."""
        plain, each = self.prices.rows(1), self.each(known)
        once = catch_up / self.prices.num_texts
        depth = self.longest
        if known.by_depth and each:
            depth = min(depth, int((self.most_loss - once) / each))
        depths = min(max(known.depth.value, 1.0), depth) * each if known.by_depth else 0.0  # the root is evaluated too
        of_a_node = 0.0 if known.by_depth else each

        def loss(nodes: int) -> float:
            return self.prices.rows(1 + nodes) - plain + depths + nodes * of_a_node

        num_nodes = bisect_right(range(1, self.most_nodes + 1), self.most_loss - once, key=loss)
        num_nodes = num_nodes if known.was_asked else min(num_nodes, FIRST_NODES)
        if num_nodes < 1 or depth < 1:
            return
        expected = loss(max(min(round(known.nodes.value), num_nodes), 1))
        tokens = 1 + min(known.accepted.value, self.limit)
        seconds = plain + expected + catch_up * min(tokens / self.limit, 1.0)
        choice = Choice(draft, depth, floors=[0.0] * num_nodes)
        yield Option(known, choice, tokens, seconds, expected + once, catch_up)

    @property
    def longest(self) -> int:
        """Tokens of the longest proposal."""
        return min(self.limit, self.most_tokens)

    def each(self, known: DraftEstimate) -> float:
        """Seconds of what a draft says at a time: a token, a node, or a model's depth of a tree."""
        if known.seconds.weight:
            return known.seconds.each(self.prices.num_texts)
        if isinstance(known, TreeEstimate) and not known.by_depth:
            return 0.0
        first = UNKNOWN_COST * self.prices.plain if known.first_seconds is None else known.first_seconds
        return min(first, MOST_FIRST_COST * self.prices.plain)


def best(options: Sequence[Option], enough: float) -> Option:
    """The longest whose rate is `enough` of the highest; rates rise with the length up to that one, and then fall."""
    highest = last = options[0]
    for option in options[1:]:
        highest = max(highest, option, key=rate)
        if option.rate < enough * highest.rate:
            break
        last = option
    return last


def rate(option: Option) -> float:
    return option.rate
