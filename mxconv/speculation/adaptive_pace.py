"""A pace that maximizes the expected tokens a second, and costs little where no draft pays.

It measures what passes and drafts cost and how many proposed tokens are accepted. From these it predicts the rate
(tokens a second) of plain decoding and of every draft at every length, or with the tree that the prices allow, and
takes the best. Three rules bound what learning costs:

- An account in plain rounds: `SHARE` of every round is added, and what drafts gain or lose is booked. A choice that
  could lose more is not made, so drafts that never pay cost `FIRST_CREDIT` rounds and `SHARE` of the time.
- A draft that is not the best is tried again when `SHARE` of the time since covers its loss, later after each defeat.
- The first round of a draft says nothing about prices, since weights and code may come from disk.

A tree ends where a further node is not worth its price at the best rate: its limits are how improbable the path of a
node, and the nodes of a depth together, may become. Texts that are decoded side by side share what
they learn, and each is charged its part of the passes of all: under load rows are dear, and fewer of them pay.
"""

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Self

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.loaded_level import USUAL_SHARE
from mxconv.speculation.pace import PLAIN, RESTING, Choice, Outcome, Prices, RowPrices
from mxconv.speculation.passes import ALONE, Load
from mxconv.speculation.statistics import MOST_UNUSUAL, Chance, RunningMean

MOST_TOKENS, MOST_NODES = 16, 48  # of a proposal
SHARE, FIRST_CREDIT, MOST_CREDIT = 0.02, 1.0, 6.0  # of the account, in plain rounds
SHARE_OF_REST = 0.02  # what reading a prompt for a draft may cost, of the tokens that are left
CLEARLY, MOST_PATIENCE = 0.8, 8.0  # a draft with less than this share of the best rate lost clearly
MOST_REST = 24  # rounds for which the choice of plain decoding holds at most
FIRST_NODES, FEW_MISSED = 7, 8  # nodes of a first tree; tokens that a draft can miss and be as fast as ever


@dataclass
class DraftEstimate:
    """What is known of a draft."""

    share: float = (
        USUAL_SHARE  # expected of a token (of a model's tree a depth, of a look-up's a node), in plain passes
    )
    reads: float = 0.0  # the expected price of reading a token that it has missed, in those of the level
    grows: bool = False  # it makes trees
    by_depth: bool = True  # it is a model, which evaluates a depth of its tree in a pass
    at_once: bool = False  # one pass makes the whole proposal, which is its unit
    unit: RowPrices = field(default_factory=RowPrices)  # seconds of all texts that share it, by their number
    starts: Chance = field(default_factory=lambda: Chance(1.0, weight=2.0))  # it proposes something
    goes_on: Chance = field(default_factory=lambda: Chance(0.8, weight=2.0))  # it proposes a further token
    right: Chance = field(default_factory=lambda: Chance(0.7, weight=2.0))  # a token after accepted ones is accepted
    nodes: RunningMean = field(default_factory=lambda: RunningMean(FIRST_NODES, 1.0))
    depth: RunningMean = field(default_factory=lambda: RunningMean(4.0, 1.0))
    accepted: RunningMean = field(default_factory=lambda: RunningMean(1.0, 1.0))
    promised: RunningMean = field(default_factory=lambda: RunningMean(1.25, 1.0))  # accepted, by its probabilities
    num_rounds: int = 0  # in which it was queried
    num_idle: int = 0  # rounds of all texts since it was queried, or chosen for a trial
    patience: float = 1.0

    @property
    def trust(self) -> float:
        """Accepted tokens of a tree over what its probabilities promised."""
        return min(max(self.accepted.value / max(self.promised.value, 1e-3), 0.05), 2.0)

    def each(self, now: Prices) -> float:
        """Seconds of one text for a unit of its proposal."""
        texts = now.load.num_texts
        return self.unit.seconds(texts) / texts if self.unit.curve else self.share * now.plain

    def drafting(self, number: float, now: Prices) -> float:
        """Seconds of one text for a proposal of so many tokens or depths."""
        return self.each(now) * (1 if self.at_once else number)

    def units(self, outcome: Outcome) -> int:
        if self.at_once:
            return 1
        return max(outcome.depth if self.by_depth and self.grows else outcome.num_proposed, 1)

    def fade(self) -> None:
        """Let what was learned count less, for every round since."""
        for mean in (self.starts, self.goes_on, self.right, self.nodes, self.depth, self.accepted, self.promised):
            mean.fade(self.num_idle)
        self.num_idle = 0

    def learn(self, requested: int, outcome: Outcome, drafting: float) -> None:
        """Learn from a round in which it was queried; `drafting` are its seconds without reading."""
        self.num_idle += 1
        self.fade()
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        if self.grows:
            self.nodes.add(proposed)
            self.depth.add(outcome.depth)
            self.accepted.add(accepted)
            self.promised.add(sum(outcome.probabilities))
        elif proposed:
            self.right.add(accepted, min(accepted + 1, proposed))
            self.goes_on.add(proposed - 1, min(proposed, requested - 1))
        self.starts.add(float(proposed > 0))
        if self.num_rounds:
            self.unit.add(round(outcome.draft_sharers, 3), drafting / self.units(outcome) * outcome.draft_sharers)
        self.num_rounds += 1


@dataclass(frozen=True)
class Option:
    """A choice with the tokens and seconds that are expected of it, and the seconds that it could lose."""

    choice: Choice
    tokens: float
    seconds: float
    risk: float
    reading: float = 0.0  # seconds before the draft can go on with this text

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class AdaptivePace:
    """Chooses by what has paid.

    Args:
        drafts: to choose from.
        sets_floors: whether to give drafts a floor, instead of their own confidence thresholds.
        most_nodes: the most nodes of a tree.
    """

    def __init__(self, drafts: Sequence[DraftEstimate], sets_floors: bool = True, most_nodes: int = MOST_NODES) -> None:
        self.drafts = list(drafts)
        self._sets_floors, self._most_nodes = sets_floors, most_nodes
        self._prices, self._credit, self._last_pass = RowPrices(), FIRST_CREDIT, 0  # the last two are the root's
        self._root = self  # the pace that this one was copied from, for a text
        self._prompt_token = RunningMean()  # seconds of the level's own
        self._rest, self._rests_at, self._missed = 0, ALONE, [0] * len(drafts)  # tokens that each draft has not read

    def of_text(self) -> Self:
        """A pace for one of several texts that share what they learn."""
        made = copy.copy(self)
        made._missed, made._rest = [0] * len(self.drafts), 0
        return made

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        if not (self._prices.knows(load.num_texts) and self._prices.knows(load.num_texts + load.other_rows)):
            return PLAIN
        if self.skip(1, load):
            return RESTING
        now = Prices(self._prices, load)
        options = [made for draft in range(len(self.drafts)) if (made := self._option(draft, limit, now)) is not None]
        known = [option for option in options if self.drafts[option.choice.draft].num_rounds]
        best = max([Option(PLAIN, 1.0, now.plain, 0.0), *known], key=lambda option: option.rate)
        chosen, rest = best, float(MOST_REST)
        for option in options:
            draft = self.drafts[option.choice.draft]
            if option is best:
                draft.patience = 1.0
                continue
            wait = self._wait(draft, option, best, limit, now)
            rest = min(rest, wait)
            if wait <= 0:
                lost = draft.num_rounds > 0 and option.rate < CLEARLY * best.rate
                draft.patience = min(2 * draft.patience, MOST_PATIENCE) if lost else 1.0
                draft.fade()  # other texts wait for what this one learns
                chosen = option
                break
        if chosen.choice is PLAIN:
            self._rest, self._rests_at = int(rest), load
        return self._with_floors(chosen.choice, best.rate, now)

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        if num_rounds > self._rest or self._rests_at != load:
            return False
        self._rest -= num_rounds
        self._book(num_rounds * SHARE, load)
        for draft, known in enumerate(self.drafts):
            known.num_idle += num_rounds
            self._missed[draft] += num_rounds
        return True

    def _wait(self, draft: DraftEstimate, option: Option, best: Option, limit: int, now: Prices) -> float:
        """The rounds until a draft is tried that is not the best, or was never queried; at most 0 if it is now."""
        count = now.load.num_texts
        if not draft.num_rounds and option.reading <= (FIRST_CREDIT + SHARE_OF_REST * limit) * now.plain * count:
            return float(draft.num_idle == 0) if not option.reading or option.rate > best.rate else inf
        loss = draft.patience * (count * (option.seconds - option.tokens / best.rate) + option.reading)
        return loss / (now.plain * SHARE) - draft.num_idle

    def _option(self, draft: int, limit: int, now: Prices) -> Option | None:
        """The best that can be requested of a draft within the account; None where there is nothing."""
        make, reading = self._tree if self.drafts[draft].grows else self._chain, self._reading(draft)
        option = make(draft, min(limit, MOST_TOKENS), now)
        if option is None or not reading:
            return option
        return replace(option, seconds=option.seconds + reading * min(option.tokens / limit, 1.0), reading=reading)

    def _reading(self, draft: int) -> float:
        """Seconds before a draft can go on with this text."""
        missed = self._missed[draft]
        return missed * self.drafts[draft].reads * self._prompt_token.value if missed > FEW_MISSED else 0.0

    def _chain(self, draft: int, most: int, now: Prices) -> Option | None:
        """The length with the best rate; one token of a draft that was never queried."""
        known, best = self.drafts[draft], None
        proposed, accepted = 0.0, 0.0
        reached = right = known.starts.value
        for requested in range(1, most + 1 if known.num_rounds else 2):
            right *= known.right.value
            proposed, accepted = proposed + reached, accepted + right
            reached, right = reached * known.goes_on.value, right * known.goes_on.value
            risk = known.drafting(requested, now) + now.rows(1 + requested) - now.plain
            seconds = known.drafting(max(proposed, 1.0), now) + now.rows(1 + proposed)
            option = Option(Choice(draft, TreeLimits.chain(requested)), 1 + accepted, seconds, risk)
            if risk > self._root._credit * now.plain or (best and option.rate < CLEARLY * best.rate):
                break
            best = option if best is None or option.rate > best.rate else best
        return best

    def _tree(self, draft: int, most: int, now: Prices) -> Option | None:
        """The tree that prices and the account allow, expected to be as trees were so far."""
        known, most_loss = self.drafts[draft], self._root._credit * now.plain
        # twice the rows of any pass so far: beyond them prices are guesses, and a kernel's may leap
        each, widest = known.each(now), max(2 * int(now.of_all.widest / now.load.num_texts) - 1, FIRST_NODES)
        most_nodes = min(self._most_nodes, MOST_NODES, widest if known.num_rounds else FIRST_NODES)
        depth = min(most, int(0.8 * most_loss / each)) if known.by_depth and each and not known.at_once else most
        depths = known.drafting(min(max(known.depth.value, 1.0), depth), now) if known.by_depth else 0.0

        def loss(nodes: int) -> float:
            return now.rows(1 + nodes) - now.plain + depths + (0.0 if known.by_depth else nodes * each)

        num_nodes = bisect_right(range(1, most_nodes + 1), most_loss, key=loss)
        if num_nodes < 1 or depth < 1:
            return None
        risk = loss(max(min(round(known.nodes.value), num_nodes), 1))
        choice = Choice(draft, TreeLimits(depth, [0.0] * num_nodes))
        return Option(choice, 1 + min(known.accepted.value, depth), now.plain + risk, risk)

    def _with_floors(self, choice: Choice, rate: float, now: Prices) -> Choice:
        """The choice, to end where a further token is not worth its price at the best rate."""
        if choice.limits.is_chain:
            return choice
        known = self.drafts[choice.draft]
        each, of_rows = known.each(now), now.up_to(1 + len(choice.limits.floors))
        prices = [
            (wider - narrower + (0.0 if known.by_depth else each)) * rate for narrower, wider in pairwise(of_rows)
        ]
        floors = [price / known.trust for price in accumulate(prices, max)]
        if not known.by_depth or not self._sets_floors:
            return Choice(choice.draft, TreeLimits(choice.num_tokens, floors))
        of_depth = sum(prices[: max(round(known.nodes.value), 1)]) / max(known.depth.value, 1.0)
        further = 0.0 if known.at_once else each * rate
        return Choice(choice.draft, TreeLimits(choice.num_tokens, floors, least_sum=(further + of_depth) / known.trust))

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        if choice is RESTING:
            return
        joint, now = outcome.joint, Prices(self._prices, outcome.load)
        is_first = choice.num_tokens > 0 and not self.drafts[choice.draft].num_rounds
        is_prompt = outcome.num_evaluated - 1 - outcome.num_proposed > FEW_MISSED
        if is_prompt:
            self._prompt_token.fade()
            self._prompt_token.add(outcome.level_seconds, outcome.num_evaluated)
        elif joint is None and not is_first:
            self._prices.add(outcome.num_evaluated, outcome.level_seconds)
        elif joint is not None and joint.number != self._root._last_pass:
            self._root._last_pass = joint.number
            self._prices.add(joint.num_rows, joint.seconds)
        rounds = SHARE * (1 + outcome.num_accepted)
        for draft, known in enumerate(self.drafts):
            if choice.num_tokens and draft == choice.draft:
                usual, level = known.units(outcome) * known.each(now), now.rows(1 + outcome.num_proposed)
                drafting = min(outcome.draft_seconds, usual) if self._reading(draft) else outcome.draft_seconds
                # where the level was slower than expected, so was its draft; what needed far too long was interrupted
                slower = outcome.level_seconds / level if joint is None and not is_prompt else 1.0
                seconds = level + min(drafting / slower, usual if is_first else MOST_UNUSUAL * usual + now.plain / 2)
                rounds += 1 + outcome.num_accepted - seconds / now.plain
                known.learn(choice.num_tokens, outcome, drafting)
                self._missed[draft] = 0
            else:
                known.num_idle += 1
                self._missed[draft] = outcome.num_evaluated + (0 if is_prompt else self._missed[draft])
        self._book(rounds, outcome.load)

    def _book(self, rounds: float, load: Load) -> None:
        """Add to the account of all texts."""
        credit = self._root._credit + rounds / load.num_texts
        self._root._credit = max(min(credit, MOST_CREDIT), 0.0)
