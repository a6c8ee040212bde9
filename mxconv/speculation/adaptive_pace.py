"""A pace that maximizes the expected tokens a second, and costs little where no draft pays.

It measures what passes and drafts cost and how many proposed tokens are accepted. From these it predicts the rate
(tokens a second) of plain decoding and of every draft at every length, and with the tree that the prices allow, and
takes the best. A draft that was never queried is believed to be as most are, until it fails. Three rules bound what
learning costs:

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
from typing import Self

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.loaded_level import USUAL_SHARE
from mxconv.speculation.pace import PLAIN, RESTING, Choice, Outcome, Prices, RowPrices
from mxconv.speculation.passes import ALONE, Load
from mxconv.speculation.statistics import MOST_UNUSUAL, Chance, RunningMean

AUTO_TOKENS, AUTO_NODES = 16, 48  # of a proposal
STREAMED_TOKENS = 48  # where a pass reads weights from a disk, beside which draft tokens cost little
SHARE, FIRST_CREDIT, MOST_CREDIT = 0.02, 1.0, 6.0  # of the account, in plain rounds
SHARE_OF_REST = 0.1  # what reading a prompt for a draft that was never queried may cost, of the tokens that are left
CLEARLY, MOST_PATIENCE = 0.8, 8.0  # a draft with less than this share of the best rate lost clearly
MOST_REST = 24  # rounds for which the choice of plain decoding holds at most
FIRST_TOKENS, FIRST_NODES, FIRST_SECONDS = 4, 7, 0.5  # of a draft's first proposal; its seconds in plain rounds
FEW_UNREAD = 8  # tokens that a draft can have to read and be as fast as ever
USUALLY_RIGHT = 0.8  # the chance of a draft's token until it was queried


@dataclass
class DraftEstimate:
    """What is known of a draft."""

    share: float = USUAL_SHARE  # expected of a token, of a model's tree a depth, of a look-up's a node; in plain passes
    reads: float = 0.0  # the expected price of reading a token, in those of the level
    grows: bool = False  # it makes trees
    by_depth: bool = True  # it is a model, which evaluates a depth of its tree in a pass
    at_once: bool = False  # one pass makes the whole proposal, which is its unit
    number: int = 0  # of the draft: one that makes trees is estimated as a maker of chains too
    unit: RowPrices = field(default_factory=RowPrices)  # seconds of all texts that share it, by their number
    starts: Chance = field(default_factory=lambda: Chance(1.0, weight=2.0))  # it proposes something
    goes_on: Chance = field(default_factory=lambda: Chance(0.8, weight=2.0))  # it proposes a further token
    right: Chance = field(default_factory=lambda: Chance(USUALLY_RIGHT, weight=2.0))  # a token after accepted ones is
    nodes: RunningMean = field(default_factory=lambda: RunningMean(FIRST_NODES, 1.0))
    depth: RunningMean = field(default_factory=lambda: RunningMean(4.0, 1.0))
    accepted: RunningMean = field(default_factory=lambda: RunningMean(2.0, 1.0))
    promised: RunningMean = field(default_factory=lambda: RunningMean(2.5, 1.0))  # accepted, by its probabilities
    num_rounds: int = 0  # in which it was queried
    num_idle: int = 0  # rounds of all texts since it was queried, or chosen for a trial
    patience: float = 1.0
    was_dear: bool = False  # its first price was unexpectedly dear, and so not believed at once

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

    def learn(self, requested: int, outcome: Outcome, drafting: float, usual: float) -> None:
        """Learn from a round in which it was queried.

        `drafting` are its seconds without reading, and `usual` what was expected of them.
        """
        self.num_idle += 1
        self.fade()
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        if self.grows:
            self.nodes.add(proposed)
            self.depth.add(outcome.depth)
            self.accepted.add(accepted)
            self.promised.add(sum(outcome.probabilities))
        elif proposed:
            self.goes_on.add(proposed - 1, min(proposed, requested - 1))
        if proposed:
            self.right.add(accepted, min(accepted + 1, outcome.depth or proposed))
        self.starts.add(float(proposed > 0))
        if self.num_rounds and (self.unit.curve or self.was_dear or drafting <= MOST_UNUSUAL * usual):
            self.unit.add(round(outcome.draft_sharers, 3), drafting / self.units(outcome) * outcome.draft_sharers)
        elif self.num_rounds:
            self.was_dear = True
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
        most_tokens: of a chain, or depths of a tree.
    """

    def __init__(
        self,
        drafts: Sequence[DraftEstimate],
        sets_floors: bool = True,
        most_nodes: int = AUTO_NODES,
        most_tokens: int = AUTO_TOKENS,
    ) -> None:
        self.drafts = [replace(copy.deepcopy(draft), number=number) for number, draft in enumerate(drafts)]
        makers = [draft for draft in self.drafts if draft.grows and draft.by_depth and not draft.at_once]
        self.drafts[:0] = [replace(copy.deepcopy(draft), grows=False) for draft in makers]
        self._sets_floors, self._most_nodes, self._most_tokens = sets_floors, most_nodes, most_tokens
        self._prices, self._credit, self._last_pass = RowPrices(), FIRST_CREDIT, 0  # the last two are the root's
        self._root = self  # the pace that this one was copied from, for a text
        self._prompt_token = RunningMean()  # seconds of the level's own
        self._rest, self._rests_at = 0, ALONE
        self._unread: Sequence[int] = [0] * len(drafts)  # tokens that each draft has to read before its next proposal

    def of_text(self) -> Self:
        """A pace for one of several texts that share what they learn."""
        made = copy.copy(self)
        made._rest = 0
        return made

    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        self._unread = unread or [0] * len(self.drafts)
        if self.skip(1, load):
            return RESTING
        if not (self._prices.knows(load.num_texts) and self._prices.knows(load.num_texts + load.other_rows)):
            return PLAIN
        now = Prices(self._prices, load)
        # what another text tries just now is waited for
        free = [draft for draft in self.drafts if draft.num_rounds or draft.num_idle]
        options = [made for draft in free if (made := self._option(draft, limit, now)) is not None]
        best = max([Option(PLAIN, 1.0, now.plain, 0.0), *options], key=lambda option: option.rate)
        chosen, rest = best, float(MOST_REST)
        for option in options:
            draft = self._of(option.choice)
            if option is best:
                draft.patience = 1.0
                if not draft.num_rounds:
                    draft.fade()
                continue
            loss = now.load.num_texts * (option.seconds - option.tokens / best.rate) + option.reading
            wait = draft.patience * loss / (now.plain * SHARE) - draft.num_idle
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
        for draft in self.drafts:
            draft.num_idle += num_rounds
        return True

    def _of(self, choice: Choice) -> DraftEstimate:
        """What is known of a choice's draft, as a maker of chains or of trees."""
        of_draft = [draft for draft in self.drafts if draft.number == choice.draft]
        return of_draft[0] if choice.limits.is_chain else of_draft[-1]

    def _option(self, draft: DraftEstimate, limit: int, now: Prices) -> Option | None:
        """The best that can be requested of a draft within the account; None where there is nothing."""
        reading = self._reading(draft)
        if not draft.num_rounds and reading > (FIRST_CREDIT + SHARE_OF_REST * limit) * now.plain * now.load.num_texts:
            return None
        option = (self._tree if draft.grows else self._chain)(draft, min(limit, self._most_tokens), now)
        if option is None or not reading:
            return option
        return replace(option, seconds=option.seconds + reading * min(option.tokens / limit, 1.0), reading=reading)

    def _reading(self, draft: DraftEstimate) -> float:
        """Seconds before a draft can go on with this text."""
        unread = self._unread[draft.number]
        return unread * draft.reads * self._prompt_token.value if unread > FEW_UNREAD else 0.0

    def _most(self, draft: DraftEstimate, most: int, now: Prices) -> int:
        """The most tokens of a path: few of a draft that was never queried, and fewer of a dear one."""
        if draft.num_rounds:
            return most
        return min(most, max(min(int(FIRST_SECONDS * now.plain / max(draft.each(now), 1e-9)), FIRST_TOKENS), 1))

    def _chain(self, draft: DraftEstimate, most: int, now: Prices) -> Option | None:
        """The length with the best rate."""
        best, proposed, accepted = None, 0.0, 0.0
        reached = right = draft.starts.value
        for requested in range(1, self._most(draft, most, now) + 1):
            right *= draft.right.value
            proposed, accepted = proposed + reached, accepted + right
            reached, right = reached * draft.goes_on.value, right * draft.goes_on.value
            risk = draft.drafting(requested, now) + now.rows(1 + requested) - now.plain
            seconds = draft.drafting(max(proposed, 1.0), now) + now.rows(1 + proposed)
            option = Option(Choice(draft.number, TreeLimits.chain(requested)), 1 + accepted, seconds, risk)
            if risk > self._root._credit * now.plain or (best and option.rate < CLEARLY * best.rate):
                break
            best = option if best is None or option.rate > best.rate else best
        return best

    def _tree(self, draft: DraftEstimate, most: int, now: Prices) -> Option | None:
        """The tree that prices and the account allow, expected to be as trees were so far."""
        most_loss, each = self._root._credit * now.plain, draft.each(now)
        # twice the rows of any pass so far: beyond them prices are guesses, and a kernel's may leap
        widest = max(2 * int(now.of_all.widest / now.load.num_texts) - 1, FIRST_NODES)
        most_nodes = min(self._most_nodes, AUTO_NODES, widest if draft.num_rounds else FIRST_NODES)
        most = self._most(draft, most, now)
        depth = min(most, int(0.8 * most_loss / each)) if draft.by_depth and each and not draft.at_once else most
        depths = draft.drafting(min(max(draft.depth.value, 1.0), depth), now) if draft.by_depth else 0.0

        def loss(nodes: int) -> float:
            return now.rows(1 + nodes) - now.plain + depths + (0.0 if draft.by_depth else nodes * each)

        num_nodes = bisect_right(range(1, most_nodes + 1), most_loss, key=loss)
        if num_nodes < 1 or depth < 1:
            return None
        risk = loss(max(min(round(draft.nodes.value), num_nodes), 1))
        right = sum(draft.right.value ** (place + 1) for place in range(depth))
        accepted = min(draft.accepted.value, depth) if draft.num_rounds else right
        return Option(Choice(draft.number, TreeLimits(depth, [0.0] * num_nodes)), 1 + accepted, now.plain + risk, risk)

    def _with_floors(self, choice: Choice, rate: float, now: Prices) -> Choice:
        """The choice, to end where a further token is not worth its price at the best rate."""
        if choice.limits.is_chain:
            return choice
        known = self._of(choice)
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
        if choice.is_resting:
            return
        joint, now = outcome.joint, Prices(self._prices, outcome.load)
        chosen = self._of(choice) if choice.num_tokens else None
        is_first = chosen is not None and not chosen.num_rounds
        is_prompt = outcome.num_evaluated - 1 - outcome.num_proposed > FEW_UNREAD
        if is_prompt:
            self._prompt_token.fade()
            self._prompt_token.add(outcome.level_seconds, outcome.num_evaluated)
        elif joint is None and not is_first:
            self._prices.add(outcome.num_evaluated, outcome.level_seconds)
        elif joint is not None and joint.number != self._root._last_pass:
            self._root._last_pass = joint.number
            self._prices.add(joint.num_rows, joint.seconds)
        rounds = SHARE * (1 + outcome.num_accepted)
        if chosen is not None:
            usual, level = chosen.units(outcome) * chosen.each(now), now.rows(1 + outcome.num_proposed)
            drafting = min(outcome.draft_seconds, usual) if self._reading(chosen) else outcome.draft_seconds
            # where the level was slower than expected, so was its draft; what needed far too long was interrupted
            slower = outcome.level_seconds / level if joint is None and not is_prompt else 1.0
            seconds = level + min(drafting / slower, usual if is_first else MOST_UNUSUAL * usual + now.plain / 2)
            rounds += 1 + outcome.num_accepted - seconds / now.plain
            chosen.learn(choice.num_tokens, outcome, drafting, usual)
        for draft in self.drafts:
            if draft is not chosen:
                draft.num_idle += 1
            if chosen is not None and not draft.num_rounds and draft.number == chosen.number:  # of the other shape
                draft.right, draft.share = replace(chosen.right, weight=2.0), chosen.each(now) / now.plain
        self._book(rounds, outcome.load)

    def _book(self, rounds: float, load: Load) -> None:
        """Add to the account of all texts."""
        credit = self._root._credit + rounds / load.num_texts
        self._root._credit = max(min(credit, MOST_CREDIT), 0.0)
