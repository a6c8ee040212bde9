"""A pace that maximizes expected tokens a second, and does no harm where drafts are useless.

From the rounds so far it knows how often a proposed token stands, how often a draft keeps its confidence, what a
proposed token costs and what verifying some number of tokens costs; from these it predicts the rate of every (draft,
length), no draft included, and takes the best. Drafts that are not the best are tried again now and then, the cheaper
the oftener, and those that stay far behind another one more and more seldom.

Within a proposal it is the draft that knows best when to stop: a further token pays while the chance that all so far
and it will stand is worth its price. How its probabilities turn into that chance is learned too, and so a draft is
told how improbable its proposal may become, which takes the place of a confidence threshold.

Whatever it takes it must afford. It keeps an account in rounds of plain decoding: what drafts gain or lose is booked
there, and a round may lose no more than there is. A little is there from the start, and a small share of all rounds
is added. So drafts that never help cost no more than these two, whatever the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mxconv.speculative.estimates import FEW_BEHIND, MOST_UNUSUAL, DraftEstimate, PassEstimate
from mxconv.speculative.pace import PLAIN, Choice, FixedPace, Outcome, Pace

MAX_ADAPTIVE_TOKENS = 16
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
    """

    def __init__(self, num_drafts: int, max_tokens: int = MAX_ADAPTIVE_TOKENS, sets_floors: bool = True) -> None:
        self.max_tokens = max_tokens
        self._sets_floors = sets_floors
        self._known = [DraftEstimate() for _ in range(num_drafts)]
        self._pass = PassEstimate()
        self._credit = FIRST_CREDIT  # rounds of plain decoding

    def choose(self, limit: int) -> Choice:
        if not self._pass.plain.weight:  # what a plain round costs is the measure of everything else
            return PLAIN
        plain, _ = self._pass.line()
        best = _Option(PLAIN, 1.0, plain, 0.0)
        of_each = []  # the best option of each draft
        for draft, known in enumerate(self._known):
            options = self._affordable(draft, known, limit)
            if not options:
                continue
            if not known.seconds.weight:
                return options[0].choice
            own = _best(options, ENOUGH if known.heeds_floors else 1.0)
            of_each.append(own)
            best = max(best, own, key=_rate)
        for trial in of_each:
            known = self._known[trial.choice.draft]
            if trial is best:
                known.patience = 1.0
            elif self._is_due(trial, best):
                is_clear = best.choice.num_tokens > 0 and trial.rate < CLOSE * best.rate
                known.patience = min(2 * known.patience, MOST_PATIENCE) if is_clear else 1.0
                return self._with_floor(trial.choice, best)
        return self._with_floor(best.choice, best)

    def _with_floor(self, choice: Choice, best: _Option) -> Choice:
        """The choice, to end where a further token is not worth its price at the rate of the best option."""
        if not self._sets_floors or not choice.num_tokens:
            return choice
        known = self._known[choice.draft]
        _, further = self._pass.line()
        return replace(choice, floor=known.floor(DOUBTFUL * (known.seconds.value + further) * best.rate))

    def _is_due(self, trial: _Option, best: _Option) -> bool:
        """Whether a draft that is not the best has waited long enough for what trying it costs."""
        known = self._known[trial.choice.draft]
        loss = known.catch_up_seconds + trial.seconds - trial.num_tokens / best.rate
        return known.idle_seconds * SHARE_TO_RISK >= loss * known.patience

    def _affordable(self, draft: int, known: DraftEstimate, limit: int) -> list[_Option]:
        most = self._credit * self._pass.line()[0]
        return list(takewhile(lambda option: option.worst_loss <= most, self._options(draft, known, limit)))

    def _options(self, draft: int, known: DraftEstimate, limit: int) -> Iterator[_Option]:
        """Every length, the shortest first."""
        plain, further = self._pass.line()
        each = known.seconds.value
        if not known.seconds.weight:
            first = UNKNOWN_COST * plain if known.first_seconds is None else known.first_seconds
            each = min(first, MOST_FIRST_COST * plain)
        for asked, proposed, accepted in known.expected(min(limit, self.max_tokens)):
            seconds = max(proposed, 1.0) * each + plain + further * proposed
            tokens = 1 + accepted
            seconds += known.catch_up_seconds * min(tokens / limit, 1.0)  # its share, if this goes on to the end
            worst_loss = known.catch_up_seconds + asked * (each + further)
            yield _Option(Choice(draft, asked), tokens, seconds, worst_loss)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        num_missed = outcome.num_evaluated - 1 - outcome.num_proposed
        if num_missed <= FEW_BEHIND:  # not a prompt
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
            # where the level was slower than it should be, so was the machine
            speed = level_seconds / outcome.level_seconds if is_measured else 1.0
            draft_seconds = outcome.draft_seconds * speed
            if known.seconds.weight:
                usual = max(outcome.num_proposed, 1) * known.seconds.value + known.catch_up_seconds
                draft_seconds = min(draft_seconds, MOST_UNUSUAL * usual)
            loss = (draft_seconds + level_seconds) / plain - num_tokens
            self._credit -= loss if known.was_asked else min(loss, MOST_FIRST_LOSS)
        self._credit = max(min(self._credit, MOST_CREDIT), -FIRST_CREDIT)


def paces(adaptive: bool, num_draft_tokens: Sequence[int], sets_floors: bool = True) -> list[Pace]:
    """The pace of every level that has a draft, the target's first.

    Args:
        adaptive: whether levels choose for themselves, and between all cheaper levels.
        num_draft_tokens: what each asks for otherwise.
        sets_floors: whether adaptive levels choose confidence thresholds too.
    """
    if not adaptive:
        return [FixedPace(number) for number in num_draft_tokens]
    count = len(num_draft_tokens)
    return [AdaptivePace(count - index, sets_floors=sets_floors) for index in range(count)]


def _best(options: Sequence[_Option], enough: float) -> _Option:
    """The longest whose rate is `enough` of the highest; rates rise with the length up to that one, and then fall."""
    highest = last = options[0]
    for option in options[1:]:
        highest = max(highest, option, key=_rate)
        if option.rate < enough * highest.rate:
            break
        last = option
    return last


def _rate(option: _Option) -> float:
    return option.rate
