"""A pace that maximizes expected tokens a second, and does no harm where drafts are useless.

From the rounds so far it knows how often a proposed token stands, how often a draft keeps its confidence, what a
proposed token costs and what verifying some number of tokens costs; from these it predicts the rate of every (draft,
length), no draft included, and takes the best. Drafts that are not the best are tried again now and then, the cheaper
the oftener, and those that stay far behind another one more and more seldom.

Within a proposal it is the draft that knows best when to stop: a further token pays while the chance that all so far
and it will stand is worth its price. How its probabilities turn into that chance is learned too, and so a draft is
told how improbable its proposal may become, which takes the place of a confidence threshold.

A draft that grows trees is asked for a tree. A node is added while the chance that its path stands is worth the price
of a row, and a model goes a depth further while the chances of all its nodes there are worth a pass; where siblings are
not worth their rows, the tree is a chain.

Whatever it takes it must afford. It keeps an account in rounds of plain decoding: what drafts gain or lose is booked
there, and a round may lose no more than there is. A little is there from the start, and a small share of all rounds
is added. So drafts that never help cost no more than these two, whatever the text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from mxconv.speculative.pacing.estimates import (
    FEW_BEHIND,
    MOST_UNUSUAL,
    NARROW_SLOPE,
    DraftEstimate,
    PassEstimate,
)
from mxconv.speculative.pacing.pace import PLAIN, Choice, FixedPace, Outcome, Pace
from mxconv.speculative.pacing.row_growth import Growth
from mxconv.speculative.pacing.row_prices import RowPrices
from mxconv.speculative.pacing.tree_estimate import FIRST_NODES, TreeEstimate

NO_GROWERS: Mapping[int, bool] = {}
MAX_ADAPTIVE_TOKENS = 16
MAX_ADAPTIVE_NODES = 48
SHARE_TO_RISK = 0.025  # of all rounds
ENOUGH = 0.98  # of the highest rate, for a longer proposal that the draft may cut short
CLOSE, MOST_PATIENCE = 0.8, 8.0  # drafts clearly behind another one are tried more and more seldom, to this factor
DOUBTFUL = 1.2  # behind a token that a draft doubts the next one is less likely to stand than others are
FIRST_CREDIT, MOST_CREDIT = 1.25, 6.0
UNKNOWN_COST = 0.5  # of a proposed token, in plain passes, until it was seen
MOST_FIRST_COST = 2.0  # believed of a draft's first round: reading its file for the first time is no property of it
MOST_FIRST_LOSS = 1.0  # and booked


@dataclass(frozen=True)
class _Option:
    """A choice and what is expected of it."""

    known: DraftEstimate
    choice: Choice
    num_tokens: float  # expected
    seconds: float
    worst_loss: float  # seconds, if all is proposed and nothing accepted

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


class AdaptivePace:
    """Chooses by what has paid.

    Args:
        num_drafts: between which to choose.
        max_tokens: the most to ask for.
        sets_floors: whether to tell drafts how improbable a proposal may become, instead of their own thresholds.
        growers: the drafts that grow trees, and whether each is a model.
        most_nodes: of a tree.
        growth: what more rows of a pass read; None is nothing more.
    """

    def __init__(
        self,
        num_drafts: int,
        max_tokens: int = MAX_ADAPTIVE_TOKENS,
        sets_floors: bool = True,
        growers: Mapping[int, bool] = NO_GROWERS,
        most_nodes: int = MAX_ADAPTIVE_NODES,
        growth: Growth | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.most_nodes = most_nodes
        self.growers = growers
        self._sets_floors = sets_floors
        self._known = [
            TreeEstimate(by_depth=growers[draft]) if draft in growers else DraftEstimate()
            for draft in range(num_drafts)
        ]
        self._pass = PassEstimate() if growth is None else PassEstimate(first_slope=_slope_of(growth))
        self._prices = RowPrices(growth)
        self._credit = FIRST_CREDIT  # rounds of plain decoding

    def choose(self, limit: int) -> Choice:
        if not self._pass.plain.weight:  # what a plain round costs is the measure of everything else
            return PLAIN
        plain, _ = self._pass.line()
        best = _Option(DraftEstimate(), PLAIN, 1.0, plain, 0.0)
        of_each = []  # the best option of each draft
        for draft, known in enumerate(self._known):
            options = self._affordable(draft, known, limit)
            if not options:
                continue
            if not known.seconds.weight:
                return self._with_floor(options[0], best)
            own = _best(options, ENOUGH if known.heeds_floors else 1.0)
            of_each.append(own)
            best = max(best, own, key=_rate)
        for trial in of_each:
            known = trial.known
            if trial is best:
                known.patience = 1.0
            elif self._is_due(trial, best):
                is_clear = best.choice.num_tokens > 0 and trial.rate < CLOSE * best.rate
                known.patience = min(2 * known.patience, MOST_PATIENCE) if is_clear else 1.0
                return self._with_floor(trial, best)
        return self._with_floor(best, best)

    def _with_floor(self, option: _Option, best: _Option) -> Choice:
        """The choice, to end where a further token is not worth its price at the rate of the best option."""
        known, choice = option.known, option.choice
        if isinstance(known, TreeEstimate):
            return self._with_floors(known, choice, best.rate)
        if not self._sets_floors or not choice.num_tokens:
            return choice
        _, further = self._pass.line()
        return replace(choice, floor=known.floor(DOUBTFUL * (known.seconds.value + further) * best.rate))

    def _with_floors(self, known: TreeEstimate, choice: Choice, rate: float) -> Choice:
        """The tree without nodes that are not worth a row, and a model's without depths that are not worth a pass."""
        rows = [self._prices.seconds(1 + nodes) for nodes in range(len(choice.floors) + 1)]
        each = self._each(known)
        node = 0.0 if known.by_depth else each
        prices = [(wider - narrower + node) * rate for narrower, wider in pairwise(rows)]
        floor = None
        if known.by_depth and self._sets_floors:
            count = max(min(round(known.nodes.value), len(prices)), 1)
            rows_of_a_depth = sum(prices[:count]) / max(known.depth.value, 1.0)
            floor = DOUBTFUL * (each * rate + rows_of_a_depth) / known.trust
        return replace(choice, floors=known.floors(prices), floor=floor)

    def _is_due(self, trial: _Option, best: _Option) -> bool:
        """Whether a draft that is not the best has waited long enough for what trying it costs."""
        known = trial.known
        loss = known.catch_up_seconds + trial.seconds - trial.num_tokens / best.rate
        return known.idle_seconds * SHARE_TO_RISK >= loss * known.patience

    def _affordable(self, draft: int, known: DraftEstimate, limit: int) -> list[_Option]:
        most = self._credit * self._pass.line()[0]
        return list(takewhile(lambda option: option.worst_loss <= most, self._options(draft, known, limit)))

    def _options(self, draft: int, known: DraftEstimate, limit: int) -> Iterator[_Option]:
        """Every length, the shortest first; or the one tree."""
        plain, further = self._pass.line()
        if isinstance(known, TreeEstimate):
            yield from self._tree(draft, known, limit)
            return
        each = self._each(known)
        for asked, proposed, accepted in known.expected(min(limit, self.max_tokens)):
            seconds = max(proposed, 1.0) * each + plain + further * proposed
            tokens = 1 + accepted
            seconds += known.catch_up_seconds * min(tokens / limit, 1.0)  # its share, if this goes on to the end
            worst_loss = known.catch_up_seconds + asked * (each + further)
            yield _Option(known, Choice(draft, asked), tokens, seconds, worst_loss)

    def _tree(self, draft: int, known: TreeEstimate, limit: int) -> Iterator[_Option]:
        """The tree that prices and what there is to lose allow, expected to be what trees were so far."""
        plain, each = self._prices.seconds(1), self._each(known)
        most = self._credit * plain
        depth = min(limit, self.max_tokens)
        if known.by_depth and each:
            depth = min(depth, int((most - known.catch_up_seconds) / each))
        rows = [self._prices.seconds(1 + nodes) - plain for nodes in range(1, self.most_nodes + 1)]
        depths = min(known.depth.value, depth) * each if known.by_depth else 0.0
        losses = [row + depths + (0.0 if known.by_depth else nodes * each) for nodes, row in enumerate(rows, 1)]
        num_nodes = sum(loss + known.catch_up_seconds <= most for loss in losses)
        num_nodes = num_nodes if known.was_asked else min(num_nodes, FIRST_NODES)
        if num_nodes < 1 or depth < 1:
            return
        loss = losses[max(min(round(known.nodes.value), num_nodes), 1) - 1]
        tokens = 1 + min(known.accepted.value, limit)
        seconds = plain + loss + known.catch_up_seconds * min(tokens / limit, 1.0)
        choice = Choice(draft, depth, floors=[0.0] * num_nodes)
        yield _Option(known, choice, tokens, seconds, loss + known.catch_up_seconds)

    def _each(self, known: DraftEstimate) -> float:
        """Seconds of what a draft says at a time: a token, a node, or a model's depth of a tree."""
        if known.seconds.weight:
            return known.seconds.value
        if isinstance(known, TreeEstimate) and not known.by_depth:
            return 0.0
        plain, _ = self._pass.line()
        first = UNKNOWN_COST * plain if known.first_seconds is None else known.first_seconds
        return min(first, MOST_FIRST_COST * plain)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        num_missed = outcome.num_evaluated - 1 - outcome.num_proposed
        if num_missed <= FEW_BEHIND:  # not a prompt
            self._prices.add(outcome.num_evaluated, outcome.level_seconds)
            self._pass.add(outcome.num_evaluated, outcome.level_seconds)
        if self._pass.plain.weight:
            self._book(choice, outcome, num_missed <= FEW_BEHIND)
        for draft, known in enumerate(self._known):
            known.fade()
            if choice.num_tokens and draft == choice.draft:
                known.learn(choice.num_tokens, outcome)
            else:
                known.miss(outcome)

    def _book(self, choice: Choice, outcome: Outcome, is_measured: bool) -> None:
        plain, further = self._pass.line()
        num_tokens = 1 + outcome.num_accepted
        self._credit += SHARE_TO_RISK * num_tokens
        if choice.num_tokens:
            known = self._known[choice.draft]
            level_seconds = plain + further * outcome.num_proposed
            if choice.floors:
                level_seconds = self._prices.seconds(1 + outcome.num_proposed)
            # where the level was slower than it should be, so was the machine
            speed = level_seconds / outcome.level_seconds if is_measured else 1.0
            draft_seconds = outcome.draft_seconds * speed
            if known.seconds.weight:
                usual = known.units(outcome) * known.seconds.value + known.catch_up_seconds
                draft_seconds = min(draft_seconds, MOST_UNUSUAL * usual)
            loss = (draft_seconds + level_seconds) / plain - num_tokens
            self._credit -= loss if known.was_asked else min(loss, MOST_FIRST_LOSS)
        self._credit = max(min(self._credit, MOST_CREDIT), -FIRST_CREDIT)


def paces(
    adaptive: bool,
    num_draft_tokens: Sequence[int],
    sets_floors: bool = True,
    growers: Sequence[Mapping[int, bool]] = (),
    num_nodes: int | None = None,
    growths: Sequence[Growth | None] = (),
) -> list[Pace]:
    """The pace of every level that has a draft, the target's first.

    Args:
        adaptive: whether levels choose for themselves, and between all cheaper levels.
        num_draft_tokens: what each asks for otherwise.
        sets_floors: whether adaptive levels choose confidence thresholds too.
        growers: of each of these levels, the drafts that grow trees for it, the next one being 0, and whether each is
            a model.
        growths: of each of these levels, what more rows of its passes read; empty where none reads more.
        num_nodes: the most of a tree; 0 is none. None leaves it to prices, and fixed lengths to chains.
    """
    if not adaptive:
        return [FixedPace(number, num_nodes or 0) for number in num_draft_tokens]
    count = len(num_draft_tokens)
    most = MAX_ADAPTIVE_NODES if num_nodes is None else num_nodes
    return [
        AdaptivePace(
            count - index,
            sets_floors=sets_floors,
            growers=growers[index] if growers and most else NO_GROWERS,
            most_nodes=most,
            growth=growths[index] if growths else None,
        )
        for index in range(count)
    ]


def _best(options: Sequence[_Option], enough: float) -> _Option:
    """The longest whose rate is `enough` of the highest; rates rise with the length up to that one, and then fall."""
    highest = last = options[0]
    for option in options[1:]:
        highest = max(highest, option, key=_rate)
        if option.rate < enough * highest.rate:
            break
        last = option
    return last


def _slope_of(growth: Growth) -> float:
    """Of a chain of the usual length, a token's share of a plain pass."""
    return NARROW_SLOPE + (growth(1 + FIRST_NODES) - 1) / FIRST_NODES


def _rate(option: _Option) -> float:
    return option.rate
