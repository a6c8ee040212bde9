"""A pace that maximizes the expected tokens a second, and costs little where no draft pays.

It measures what passes and drafts cost and how many proposed tokens are accepted. From these it predicts the rate
(tokens a second) of plain decoding and of every draft, and takes the best. A draft that knows how likely its tokens are
ends its chain or tree itself, where a further token is not worth its price at the best rate; of others every length
is an option. A draft that was never queried is believed to be as most are, until it fails. Learning costs little:

- An account in plain rounds: `SHARE` of every round is added, and what drafts gain or lose is booked. A choice that
  could lose more is not made, so drafts that never pay cost `FIRST_CREDIT` rounds and `SHARE` of the time.
- A draft that is not the best is tried again when `SHARE` of the time since covers its loss.
- The first round of a draft says nothing about prices, since weights and code may come from disk.

Texts that are decoded side by side share what they learn, and each is charged its part of the passes of all.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil
from typing import Self

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.loaded_level import USUAL_SHARE
from mxconv.speculation.pace import PLAIN, RESTING, Choice, Outcome, Prices, RowPrices
from mxconv.speculation.passes import ALONE, Load
from mxconv.speculation.statistics import MOST_UNUSUAL, Chance, RunningMean

AUTO_TOKENS, AUTO_NODES = 15, 48  # of a proposal
STREAMED_TOKENS = 48  # where a pass reads weights from a disk, beside which draft tokens cost little
SHARE, FIRST_CREDIT, MOST_CREDIT = 0.02, 1.0, 6.0  # of the account, in plain rounds
SHARE_OF_GAIN = 0.2  # what reading a prompt for a draft that was never queried may cost, of what it promises to gain
SHARE_OF_OWN_GAIN = 0.5  # for one that was queried, of what the text gains
MOST_REST = 24  # rounds for which the choice of plain decoding holds at most
FIRST_TOKENS, FIRST_NODES, FIRST_SECONDS = 4, 7, 0.5  # of a draft's first proposal; its seconds in plain rounds
PROMPT_SHARE, PROMPT_PRIOR = 0.2, 100.0  # of a plain pass, a prompt's token until prompts were read; in tokens
FEW_UNREAD = 8  # tokens that a draft can have to read and be as fast as ever
USUALLY_RIGHT, PRIOR = 0.85, 3.0  # the chance of a draft's token until it was queried, and its weight in tokens
SELDOM_RIGHT = 0.4  # that of a look-up


@dataclass
class DraftEstimate:
    """What is known of a draft."""

    share: float = USUAL_SHARE  # expected of a token, of a model's tree a depth, of a look-up's a node; in plain passes
    reads: float = 0.0  # the expected price of reading a token, in those of the level
    grows: bool = False  # it makes trees
    by_depth: bool = True  # it is a model, which evaluates a depth of its tree in a pass
    at_once: bool = False  # one pass makes the whole proposal, which is its unit
    has_chances: bool = False  # its chains end by the chances of their tokens, so no length has to be learned
    is_look_up: bool = False  # it has no model
    number: int = 0  # of the draft: one that makes trees is estimated as a maker of chains too
    unit: RowPrices = field(default_factory=RowPrices)  # seconds of all texts that share it, by their number
    starts: Chance = field(default_factory=lambda: Chance(1.0, weight=2.0))  # it proposes something
    goes_on: Chance = field(default_factory=lambda: Chance(0.8, weight=2.0))  # it proposes a further token
    right: Chance = field(default_factory=lambda: Chance(USUALLY_RIGHT, weight=PRIOR))  # a token after accepted ones is
    nodes: RunningMean = field(default_factory=lambda: RunningMean(FIRST_NODES, PRIOR))
    depth: RunningMean = field(default_factory=lambda: RunningMean(4.0, PRIOR))
    accepted: RunningMean = field(default_factory=lambda: RunningMean(2.0, PRIOR))
    num_sharers: float = 0.0  # texts that shared its passes in its last round
    num_rounds: int = 0  # in which it was queried
    num_idle: int = 0  # rounds of all texts since it was queried, or chosen for a trial

    def __post_init__(self) -> None:
        if self.is_look_up and not self.num_rounds:
            self.right.value = self.accepted.value = SELDOM_RIGHT

    def each(self, now: Prices, num_sharers: float = 0.0) -> float:
        """Seconds of one text for a unit of its proposal, whose passes so many texts share; 0: `now` says how many."""
        sharers = min(num_sharers or now.num_sharers or now.load.num_texts, now.load.num_texts)
        whole = self.unit.seconds(sharers) if self.unit.curve else self.share * now.plain * now.load.num_texts
        return whole / sharers

    def first_units(self, count: int, now: Prices) -> list[float]:
        """Seconds of one text for each of its first units; proposals that end by their chances end one by one."""
        sharers = now.num_sharers or now.load.num_texts
        if sharers <= 1:
            return [self.each(now, 1.0)] * count
        going_on = 1 - 1 / max(self.depth.value, 1.0) if self.has_chances else 1.0
        return [self.each(now, max(sharers * going_on**place, 1.0)) for place in range(count)]

    def drafting(self, number: float, now: Prices) -> float:
        """Seconds of one text for a proposal of so many tokens or depths."""
        each = self.first_units(1 if self.at_once else ceil(number), now)
        return sum(each) * (1 if self.at_once else number / len(each))

    def units(self, outcome: Outcome) -> int:
        """Return how many units of its price a proposal took: tokens, depths, or one for all."""
        return 1 if self.at_once else max(outcome.depth if self.by_depth and self.grows else outcome.num_proposed, 1)

    def expect(self, share: float) -> None:
        """Expect a few tokens, each worth that share of a plain pass, and right as often as is believed."""
        worth = [each for place in range(FIRST_TOKENS) if (each := self.right.value ** (place + 1)) >= share]
        self.depth.value, self.accepted.value = max(len(worth), 1.0), sum(worth)
        if not self.grows:
            self.nodes.value = self.depth.value

    def fade(self) -> None:
        """Let what was learned count less, for every round since."""
        for mean in (self.starts, self.goes_on, self.right, self.nodes, self.depth, self.accepted):
            mean.fade(self.num_idle)
        self.num_idle = 0

    def learn(self, requested: int, outcome: Outcome, drafting: float, usual: float) -> None:
        """Learn from a round of its own: `drafting` are its seconds without reading, `usual` what was expected."""
        self.num_idle += 1
        self.fade()
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        depth = outcome.depth or proposed
        more = int(0 < depth == requested < AUTO_TOKENS)  # it would have gone on as from its beginning
        self.nodes.add(proposed + more * self.nodes.value)
        self.depth.add(depth + more * self.depth.value)
        self.accepted.add(accepted + more * (accepted == depth) * self.accepted.value)
        if proposed and not self.grows:
            self.goes_on.add(proposed - 1, min(proposed, requested - 1))
        if proposed:
            self.right.add(accepted, min(accepted + 1, outcome.depth or proposed))
        self.starts.add(float(proposed > 0))
        if self.num_rounds:
            part = outcome.draft_sharers / self.units(outcome)
            for seconds in (drafting,) if self.unit.curve or drafting < usual else (usual, drafting):
                self.unit.add(round(outcome.draft_sharers, 3), seconds * part)
        self.num_rounds, self.num_sharers = self.num_rounds + 1, outcome.draft_sharers


@dataclass(frozen=True)
class Option:
    """A choice with the tokens and seconds that are expected of it."""

    choice: Choice
    tokens: float
    seconds: float
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
        options = [made for draft in self.drafts if (made := self._option(draft, limit, now)) is not None]
        best = chosen = max([Option(PLAIN, 1.0, now.plain), *options], key=lambda option: option.rate)
        rest = float(MOST_REST)
        for option in options:
            loss = load.num_texts * (option.seconds - option.tokens / best.rate) + option.reading
            wait = loss / (now.plain * SHARE) - self._of(option.choice).num_idle
            if option is not best and chosen is best and wait <= 0:
                chosen = option
            rest = min(rest, wait)
        if chosen.choice is PLAIN:
            self._rest, self._rests_at = int(rest), load
            return PLAIN
        for draft in self.drafts:
            if draft.number == chosen.choice.draft:
                draft.fade()  # and other texts wait for what this one learns
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
        reading, most = self._reading(draft), min(limit, self._most_tokens)
        # what another text tries just now is waited for, and texts whose prompts are read, which will make rows dear
        if not (draft.num_rounds or draft.num_idle) or (reading and now.load.other_rows):
            return None
        if draft.reads and not reading:  # others would have to read first
            now = replace(now, num_sharers=draft.num_sharers)
        if not draft.num_rounds:  # few tokens
            most = min(most, FIRST_TOKENS, max(int(FIRST_SECONDS * now.plain / max(draft.each(now), 1e-9)), 1))
        most_seconds = (1 + self._root._credit) * now.plain
        grown = draft.grows or (draft.has_chances and self._sets_floors)
        options = (self._grown if grown else self._chains)(draft, most, most_seconds, now)
        best = max(options, key=lambda option: option.rate, default=None)
        if best is not None and reading:
            hoped = limit * max(now.plain - 1 / best.rate, 0.0)  # seconds that each text would save
            of_all = (FIRST_CREDIT * now.plain + SHARE_OF_GAIN * hoped) * now.load.num_texts
            of_own = SHARE_OF_OWN_GAIN * hoped  # which all of several texts have to hope for
            if reading > (of_own if draft.num_rounds else min(of_all, max(of_own, now.plain))):
                return None
            best = replace(best, seconds=best.seconds + reading * min(best.tokens / limit, 1.0), reading=reading)
        return best

    def _reading(self, draft: DraftEstimate) -> float:
        """Seconds before a draft can go on with this text."""
        unread, known = self._unread[draft.number], self._prompt_token
        expected = PROMPT_SHARE * self._prices.seconds(1)
        token = known.value + (expected - known.value) * PROMPT_PRIOR / (known.weight + PROMPT_PRIOR)
        return unread * draft.reads * token if unread > FEW_UNREAD else 0.0

    def _chains(self, draft: DraftEstimate, most: int, most_seconds: float, now: Prices) -> Iterator[Option]:
        """Chains by their length."""
        proposed, accepted = 0.0, 0.0
        reached = right = draft.starts.value
        for requested in range(1, most + 1):
            if draft.drafting(requested, now) + now.rows(1 + requested) > most_seconds:
                break
            right *= draft.right.value
            proposed, accepted = proposed + reached, accepted + right
            reached, right = reached * draft.goes_on.value, right * draft.goes_on.value
            seconds = draft.drafting(max(proposed, 1.0), now) + now.rows(1 + proposed)
            yield Option(Choice(draft.number, TreeLimits.chain(requested)), 1 + accepted, seconds)

    def _grown(self, draft: DraftEstimate, most: int, most_seconds: float, now: Prices) -> Iterator[Option]:
        """The largest tree, or longest chain, within the account, expected to be as they were so far."""
        # twice the rows of any pass so far: beyond them prices are guesses, and a kernel's may leap
        widest = max(2 * int(now.of_all.widest / now.load.num_texts) - 1 if draft.num_rounds else 0, FIRST_NODES)
        depth = max(min(draft.depth.value, most), 1.0)

        def seconds(nodes: int, depth: float) -> float:
            return now.rows(1 + nodes) + draft.drafting(depth if draft.by_depth else nodes, now)

        def at_most(nodes: int) -> float:
            return seconds(nodes, depth if draft.grows else nodes)

        most_nodes = self._most_nodes if draft.grows else most
        num_nodes = bisect_right(range(1, min(most_nodes, widest) + 1), most_seconds, key=at_most)
        if num_nodes:
            usual = seconds(max(min(round(draft.nodes.value), num_nodes), 1), depth)
            longest = min(most, num_nodes)
            right = sum(draft.right.value ** (place + 1) for place in range(longest))
            accepted = min(draft.accepted.value, longest) if draft.num_rounds else right
            limits = TreeLimits(most, [0.0] * num_nodes) if draft.grows else TreeLimits.chain(longest)
            yield Option(Choice(draft.number, limits), 1 + accepted, usual)

    def _with_floors(self, choice: Choice, rate: float, now: Prices) -> Choice:
        """The choice, to end where a further token is not worth its price at the best rate."""
        known, is_chain = self._of(choice), choice.limits.is_chain
        if is_chain and not (known.has_chances and self._sets_floors):
            return choice
        of_rows = [now.rows(1 + nodes) for nodes in range(len(choice.limits.floors) + 1)]
        each = 0.0 if known.at_once else rate
        of_pass, *of_later = (each * seconds for seconds in known.first_units(len(of_rows), now))
        of_node = 0.0 if known.by_depth else of_pass
        floors = list(accumulate(((wider - narrower) * rate + of_node for narrower, wider in pairwise(of_rows)), max))
        if not (known.by_depth and self._sets_floors):
            return Choice(choice.draft, replace(choice.limits, floors=floors))
        if is_chain:  # a token that was made is kept: whether to make the next one is judged before it is known
            later = zip(floors[1:], of_later, strict=False)
            floors = [floors[0], *((floor + of_pass) / known.right.value for floor, of_pass in later)]
            return Choice(choice.draft, replace(choice.limits, floors=floors, least_sum=0.0))
        of_depth = sum(floors[: max(round(known.nodes.value), 1)]) / max(known.depth.value, 1.0)
        return Choice(choice.draft, replace(choice.limits, floors=floors, least_sum=of_depth + of_pass))

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        if choice.is_resting:
            return
        joint, now = outcome.joint, Prices(self._prices, outcome.load)
        chosen = self._of(choice) if choice.num_tokens else None
        if outcome.num_evaluated - 1 - outcome.num_proposed > FEW_UNREAD:
            self._prompt_token.fade()
            self._prompt_token.add(outcome.level_seconds, outcome.num_evaluated)
        elif joint is None and (chosen is None or chosen.num_rounds):
            self._prices.add(outcome.num_evaluated, outcome.level_seconds)
        elif joint is not None and joint.number != self._root._last_pass:
            self._root._last_pass = joint.number
            self._prices.add(joint.num_rows, joint.seconds)
        gained = SHARE * (1 + outcome.num_accepted)
        if chosen is not None:
            usual, drafting = chosen.units(outcome) * chosen.each(now, outcome.draft_sharers), outcome.draft_seconds
            # what takes longer read, or was interrupted
            most = MOST_UNUSUAL * usual + now.plain / 2 if chosen.num_rounds else usual
            seconds = min(drafting, most) + now.rows(1 + outcome.num_proposed)
            gained += 1 + outcome.num_accepted - seconds / now.plain
            if chosen.by_depth and not (chosen.num_rounds or chosen.at_once):
                chosen.expect(chosen.each(now) / now.plain)
            chosen.learn(choice.num_tokens, outcome, min(drafting, usual) if self._reading(chosen) else drafting, usual)
        for draft in self.drafts:
            if draft is not chosen:
                draft.num_idle += 1
            if chosen is not None and not draft.num_rounds and draft.number == chosen.number:  # of the other shape
                draft.right, draft.share = replace(chosen.right, weight=PRIOR), chosen.each(now) / now.plain
        self._book(gained, outcome.load)

    def _book(self, rounds: float, load: Load) -> None:
        """Add to the account of all texts."""
        credit = self._root._credit + rounds / load.num_texts
        self._root._credit = max(min(credit, MOST_CREDIT), 0.0)
