"""How many tokens a level asks of which draft, round by round: a fixed number, or what has paid so far.

`AdaptivePace` maximizes expected tokens a second. From the rounds so far it knows how often a proposed token stands,
how often a draft keeps its confidence, what a proposed token costs and what verifying some number of tokens costs;
from these it predicts the rate of every (draft, length), no draft included, and takes the best. Drafts that are not
the best are tried again now and then, the cheaper the oftener.

Whatever it takes it must afford. It keeps an account in rounds of plain decoding: what drafts gain or lose is booked
there, and a round may lose no more than there is. A little is there from the start, and a small share of all rounds
is added. So drafts that never help cost no more than these two, whatever the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_ADAPTIVE_TOKENS = 16
MEMORY = 0.95  # what is left in a round of the weight of all that was known before
SHARE_TO_RISK = 0.025  # of all rounds
FIRST_CREDIT, MOST_CREDIT = 1.25, 6.0
NARROW_SLOPE = 0.04  # of a plain pass for each further token, until wider ones were seen
UNKNOWN_COST = 0.5  # of a proposed token, in plain passes, until it was seen
MOST_FIRST_COST = 2.0  # believed of a draft's first round: reading its file for the first time is no property of it
MOST_FIRST_LOSS = 1.0  # and booked
MOST_UNUSUAL = 3.0  # times as long as usual; what takes longer was interrupted by somebody else
FEW_BEHIND = 8  # tokens that a model can have missed and still go on as fast as ever


@dataclass(frozen=True)
class Choice:
    """Ask `num_tokens` of the level's draft number `draft`; 0 tokens: decode plainly."""

    draft: int
    num_tokens: int


PLAIN = Choice(0, 0)


@dataclass(frozen=True)
class Outcome:
    """What became of a choice.

    Args:
        num_proposed: by the draft, at most as many as it was asked for.
        num_accepted: of these.
        num_evaluated: tokens that the level's forward pass took in.
        draft_seconds: until the draft had proposed.
        level_seconds: of the level's own pass and judgement.
    """

    num_proposed: int
    num_accepted: int
    num_evaluated: int
    draft_seconds: float
    level_seconds: float


class Pace(Protocol):
    def choose(self, limit: int) -> Choice:
        """What to ask for, at most `limit` tokens (at least one)."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class FixedPace:
    """Always the same number, of the next level."""

    num_tokens: int

    def choose(self, limit: int) -> Choice:
        return Choice(0, min(self.num_tokens, limit))

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass


@dataclass
class _Mean:
    """A running mean. What was seen long ago counts less, but as `least` samples: a single new one decides nothing."""

    value: float = 0.0
    weight: float = 0.0
    least: float = 1.0

    def fade(self) -> None:
        self.weight = max(self.weight * MEMORY, min(self.weight, self.least))

    def add(self, total: float, count: float = 1.0) -> None:
        if count:
            self.value = (self.value * self.weight + total) / (self.weight + count)
            self.weight += count

    def add_seconds(self, seconds: float) -> None:
        self.add(min(seconds, MOST_UNUSUAL * self.value) if self.weight else seconds)


@dataclass
class _Pass:
    """Seconds of a level's own pass: of plain ones, and of wider ones on average; on a line through both."""

    plain: _Mean = field(default_factory=_Mean)
    wide: _Mean = field(default_factory=_Mean)
    width: _Mean = field(default_factory=_Mean)

    def add(self, num_tokens: int, seconds: float) -> None:
        for mean in (self.plain, self.wide, self.width):
            mean.fade()
        if num_tokens == 1:
            self.plain.add_seconds(seconds)
        else:
            self.wide.add_seconds(seconds)
            self.width.add(num_tokens)

    def line(self) -> tuple[float, float]:
        """Seconds of one token, and of each further one."""
        if not self.wide.weight:
            return self.plain.value, NARROW_SLOPE * self.plain.value
        # a wide pass that is faster than a plain one was shows that the machine has become faster since
        plain = min(self.plain.value, self.wide.value)
        weight = self.wide.weight
        further = ((self.wide.value - plain) * weight + NARROW_SLOPE * plain) / ((self.width.value - 1) * weight + 1)
        return plain, further


@dataclass
class _Knowledge:
    """What is known of one draft."""

    stands: _Mean = field(default_factory=lambda: _Mean(0.7, 2.0, 4.0))  # a proposed token whose predecessors stood
    starts: _Mean = field(default_factory=lambda: _Mean(1.0, 2.0, 4.0))  # proposals that are not empty
    goes_on: _Mean = field(default_factory=lambda: _Mean(0.8, 2.0, 4.0))  # asked for more than it has said
    seconds: _Mean = field(default_factory=_Mean)  # a proposed token
    catch_up: _Mean = field(default_factory=_Mean)  # seconds for each token that it has missed
    num_behind: int = 0  # tokens that it has missed
    idle_seconds: float = 0.0  # since it was asked
    first_seconds: float = 0.0  # a proposed token of the first round

    def fade(self) -> None:
        for mean in (self.stands, self.starts, self.goes_on, self.seconds, self.catch_up):
            mean.fade()

    def learn(self, asked: int, outcome: Outcome) -> None:
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        self.starts.add(float(proposed > 0))
        if proposed:
            self.stands.add(accepted, min(accepted + 1, proposed))
            self.goes_on.add(proposed - 1, min(proposed, asked - 1))
        each = outcome.draft_seconds / max(proposed, 1)
        if self.num_behind <= FEW_BEHIND or (self.first_seconds and not self.seconds.weight):
            self.seconds.add_seconds(each)
        elif not self.first_seconds:
            self.first_seconds = each
        else:
            extra = max(each - self.seconds.value, 0.0) * max(proposed, 1)
            self.catch_up.add(extra / self.num_behind)
            self.seconds.add_seconds(min(each, self.seconds.value))
        self.num_behind, self.idle_seconds = 0, 0.0

    def miss(self, outcome: Outcome) -> None:
        is_prompt = outcome.num_evaluated > 1 + outcome.num_proposed + FEW_BEHIND
        self.num_behind = outcome.num_evaluated + (0 if is_prompt else self.num_behind)
        self.idle_seconds += outcome.draft_seconds + outcome.level_seconds

    @property
    def catch_up_seconds(self) -> float:
        return self.catch_up.value * self.num_behind if self.num_behind > FEW_BEHIND else 0.0

    def expected(self, most: int) -> Iterator[tuple[int, float, float]]:
        """For 1 to `most` tokens asked: that number, and how many will be proposed and accepted."""
        proposed = accepted = 0.0
        reached = stood = self.starts.value
        for asked in range(1, most + 1):
            stood *= self.stands.value
            proposed += reached
            accepted += stood
            yield asked, proposed, accepted
            reached *= self.goes_on.value
            stood *= self.goes_on.value


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
    """

    def __init__(self, num_drafts: int, max_tokens: int = MAX_ADAPTIVE_TOKENS) -> None:
        self.max_tokens = max_tokens
        self._known = [_Knowledge() for _ in range(num_drafts)]
        self._pass = _Pass()
        self._credit = FIRST_CREDIT  # rounds of plain decoding

    def choose(self, limit: int) -> Choice:
        if not self._pass.plain.weight:  # what a plain round costs is the measure of everything else
            return PLAIN
        plain, _ = self._pass.line()
        best = _Option(PLAIN, 1.0, plain, 0.0)
        shortest = []
        for draft, known in enumerate(self._known):
            last = None
            for option in self._options(draft, known, limit):
                if option.worst_loss > self._credit * plain or (last and option.rate < last.rate):
                    break  # rates rise with the length up to the best one, and then fall
                if last is None:
                    shortest.append(option)
                last = option
            if last and not known.seconds.weight:
                return shortest[-1].choice
            best = max(best, last or best, key=lambda option: option.rate)
        for trial in shortest:
            known = self._known[trial.choice.draft]
            loss = known.catch_up_seconds + trial.seconds - trial.num_tokens / best.rate
            is_best = best.choice.num_tokens > 0 and trial.choice.draft == best.choice.draft
            if not is_best and known.idle_seconds * SHARE_TO_RISK >= loss:
                return trial.choice
        return best.choice

    def _options(self, draft: int, known: _Knowledge, limit: int) -> Iterator[_Option]:
        """Every length, the shortest first."""
        plain, further = self._pass.line()
        each = known.seconds.value
        if not known.seconds.weight:
            each = min(known.first_seconds or UNKNOWN_COST * plain, MOST_FIRST_COST * plain)
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
            self._credit -= loss if known.first_seconds else min(loss, MOST_FIRST_LOSS)
        self._credit = max(min(self._credit, MOST_CREDIT), -FIRST_CREDIT)


def paces(adaptive: bool, num_draft_tokens: Sequence[int]) -> list[Pace]:
    """The pace of every level that has a draft, the target's first.

    Args:
        adaptive: whether levels choose for themselves, and between all cheaper levels.
        num_draft_tokens: what each asks for otherwise.
    """
    if not adaptive:
        return [FixedPace(number) for number in num_draft_tokens]
    return [AdaptivePace(len(num_draft_tokens) - index) for index in range(len(num_draft_tokens))]
