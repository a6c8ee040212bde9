"""What may be asked of a draft, and what is expected of it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mxconv.speculation.pacing.account import SHARE_TO_RISK
from mxconv.speculation.pacing.estimates import DraftEstimate
from mxconv.speculation.pacing.level_prices import Prices
from mxconv.speculation.pacing.pace import Choice
from mxconv.speculation.pacing.tree_estimate import FIRST_NODES, TreeEstimate

MOST_FIRST_COST = 2.0  # believed of a draft's first round: reading its file for the first time is no property of it


@dataclass(frozen=True)
class Option:
    """A choice and what is expected of it.

    Args:
        known: of the draft.
        choice: what it is asked for.
        num_tokens: that the round brings.
        most_tokens: that it brings if all that is proposed stands.
        seconds: that it takes.
        worst_loss: seconds, if all is proposed and nothing accepted, by every text, beside the catching up.
        catch_up_seconds: that the draft needs before it can go on.
    """

    known: DraftEstimate
    choice: Choice
    num_tokens: float
    most_tokens: float
    seconds: float
    worst_loss: float
    catch_up_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def highest_rate(self) -> float:
        return self.most_tokens / self.seconds


@dataclass(frozen=True)
class Options:
    """Of one round.

    Args:
        prices: of the level that verifies.
        most_loss: seconds that may be lost in a round.
        most_catch_up: seconds of one text that may be taken to read what a draft has missed.
        limit: tokens of which there is still use.
        most_tokens: of a proposal.
        most_nodes: of a tree.
    """

    prices: Prices
    most_loss: float
    most_catch_up: float
    limit: int
    most_tokens: int
    most_nodes: int

    def affordable(self, draft: int, known: DraftEstimate, num_behind: int) -> list[Option]:
        """Every length, the shortest first; or the one tree."""
        catch_up = known.catch_up_seconds(num_behind)
        if known.seconds.weight and catch_up and catch_up > self.most_catch_up:
            return []
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
            worst_loss = asked * (each + prices.further(asked))
            yield Option(known, Choice(draft, asked), tokens, 1 + proposed, seconds, worst_loss, catch_up)

    def _trees(self, draft: int, known: TreeEstimate, catch_up: float) -> Iterator[Option]:
        """The tree that prices and what there is to lose allow, expected to be what trees were so far."""
        plain, each = self.prices.rows(1), self.each(known)
        depth = self.longest
        if known.by_depth and each:
            depth = min(depth, int(self.most_loss / each))
        depths = min(max(known.depth.value, 1.0), depth) * each if known.by_depth else 0.0  # the root is evaluated too
        of_a_node = 0.0 if known.by_depth else each

        def loss(nodes: int) -> float:
            return self.prices.rows(1 + nodes) - plain + depths + nodes * of_a_node

        num_nodes = bisect_right(range(1, self.most_nodes + 1), self.most_loss, key=loss)
        num_nodes = num_nodes if known.was_asked else min(num_nodes, FIRST_NODES)
        if num_nodes < 1 or depth < 1:
            return
        expected = loss(max(min(round(known.nodes.value), num_nodes), 1))
        tokens = 1 + min(known.accepted.value, self.limit)
        seconds = plain + expected + catch_up * min(tokens / self.limit, 1.0)
        choice = Choice(draft, depth, floors=[0.0] * num_nodes)
        most_tokens = 1 + min(max(known.depth.value, 1.0), depth)
        yield Option(known, choice, tokens, most_tokens, seconds, expected, catch_up)

    def is_promising(self, draft: int, known: DraftEstimate, num_behind: int, chosen: Option) -> bool:
        """Whether an unknown draft, if it is a usual one, earns back what it has to read, and more than another one.

        What has nothing to read is tried; so is, after a while, what has read its file in its first round.
        """
        catch_up = known.catch_up_seconds(num_behind)
        has_waited = known.idle_seconds * SHARE_TO_RISK > catch_up + self.each(known)
        if not catch_up or (has_waited and known.first_seconds is not None):
            return True
        return best(list(self._chains(draft, known, catch_up)), 1.0).rate > chosen.rate

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
        if known.first_seconds is None:
            return known.share * self.prices.plain
        return min(known.first_seconds / self.prices.num_texts, MOST_FIRST_COST * self.prices.plain)


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
