"""How many tokens a level asks of which draft, round by round: a fixed number, or what has paid so far.

`AdaptivePace` maximizes expected tokens a second. From the rounds so far it knows how often a proposed token stands,
how often a draft keeps its confidence, what a proposed token costs and what verifying some number of tokens costs;
from these it predicts the rate of every (draft, length), no draft included. What it does not know yet it tries, and
what it tries it must afford: a round may lose no more than the credit it has, a few rounds' time at the start, a small
share of all time since, and part of what drafts have gained. So drafts that never help cost little, whatever the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

MAX_ADAPTIVE_TOKENS = 16
MEMORY = 0.95  # weight of all that was known before a round
SHARE_TO_RISK = 0.025  # of the time spent so far
FIRST_CREDIT, MOST_CREDIT = 1.5, 6.0  # in rounds of plain decoding


@dataclass(frozen=True)
class Choice:
    """Ask `num_tokens` of the level's draft number `draft`; 0 tokens: decode plainly."""

    draft: int
    num_tokens: int


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
class _Share:
    """A running share of successes; `weight` trials of prior belief fade as rounds come in."""

    mean: float
    weight: float = 3.0

    def add(self, successes: int, trials: int) -> None:
        kept = self.weight * MEMORY**trials
        total = kept + trials
        self.mean = (self.mean * kept + successes) / total
        self.weight = min(total, 1 / (1 - MEMORY))


@dataclass
class _Line:
    """Seconds of a pass over n tokens, `base + slope * n`, by least squares over faded rounds."""

    weight: float = 0.0
    n: float = 0.0
    seconds: float = 0.0
    nn: float = 0.0
    n_seconds: float = 0.0

    def add(self, n: int, seconds: float) -> None:
        if self.weight > 1:
            seconds = min(seconds, 3 * self.at(n))  # an interruption by somebody else is no property of the model
        for name, value in (("weight", 1), ("n", n), ("seconds", seconds), ("nn", n * n), ("n_seconds", n * seconds)):
            setattr(self, name, MEMORY * getattr(self, name) + value)

    def at(self, n: float) -> float:
        mean_n, mean = self.n / self.weight, self.seconds / self.weight
        # as if one more round had shown a slope of 4% of the base: without widths to compare there is no slope
        spread = self.nn - self.n * mean_n
        slope = (self.n_seconds - self.n * mean + 0.04 * mean) / (spread + 1.0)
        return max(mean + max(slope, 0.0) * (n - mean_n), mean * 0.1)


@dataclass
class _Knowledge:
    """What is known of one draft."""

    stands: _Share = field(default_factory=lambda: _Share(0.6))  # a proposed token whose predecessors stood
    starts: _Share = field(default_factory=lambda: _Share(1.0))  # proposals that are not empty
    goes_on: _Share = field(default_factory=lambda: _Share(0.8))  # a draft that was asked for more than it has said
    seconds: float | None = None  # a proposed token

    def learn(self, asked: int, outcome: Outcome) -> None:
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        self.starts.add(int(proposed > 0), 1)
        if proposed:
            self.stands.add(accepted, min(accepted + 1, proposed))
            self.goes_on.add(proposed - 1, min(proposed, asked - 1))
        each = outcome.draft_seconds / max(proposed, 1)
        if self.seconds is None:
            self.seconds = each
        else:
            self.seconds = MEMORY * self.seconds + (1 - MEMORY) * min(each, 3 * self.seconds)

    def expected(self, num_tokens: int) -> tuple[float, float]:
        """Tokens that will be proposed, and accepted, when `num_tokens` are asked for."""
        proposed = accepted = 0.0
        reached, stood = self.starts.mean, self.starts.mean
        for _ in range(num_tokens):
            stood *= self.stands.mean
            proposed += reached
            accepted += stood
            reached *= self.goes_on.mean
            stood *= self.goes_on.mean
        return proposed, accepted


class AdaptivePace:
    """Chooses by what has paid.

    Args:
        num_drafts: between which to choose.
        max_tokens: the most to ask for.
    """

    def __init__(self, num_drafts: int, max_tokens: int = MAX_ADAPTIVE_TOKENS) -> None:
        self.max_tokens = max_tokens
        self._known = [_Knowledge() for _ in range(num_drafts)]
        self._pass = _Line()
        self._credit_seconds: float | None = None

    def choose(self, limit: int) -> Choice:
        if not self._pass.weight:  # what a plain round costs is the measure of everything else
            return Choice(0, 0)
        best, best_rate = Choice(0, 0), 1 / self._pass.at(1)
        for draft, known in enumerate(self._known):
            for num_tokens in range(1, min(limit, self.max_tokens) + 1):
                if self._worst_loss(known, num_tokens) > self._credit():
                    break
                if known.seconds is None:
                    return Choice(draft, min(2, limit))
                proposed, accepted = known.expected(num_tokens)
                rate = (1 + accepted) / (proposed * known.seconds + self._pass.at(1 + proposed))
                if rate > best_rate:
                    best, best_rate = Choice(draft, num_tokens), rate
        return best if best.num_tokens or not self._is_curious() else self._experiment(limit)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        if outcome.num_evaluated == 1 + outcome.num_proposed:  # not the prompt, not what a level has to catch up on
            self._pass.add(outcome.num_evaluated, outcome.level_seconds)
        if not self._pass.weight:
            return
        plain = self._pass.at(1)
        spent = outcome.draft_seconds + outcome.level_seconds
        credit = self._credit() + SHARE_TO_RISK * min(spent, (1 + outcome.num_accepted) * plain)
        if choice.num_tokens:
            self._known[choice.draft].learn(choice.num_tokens, outcome)
            credit -= spent - (1 + outcome.num_accepted) * plain
        self._credit_seconds = min(credit, MOST_CREDIT * plain)

    def _credit(self) -> float:
        return FIRST_CREDIT * self._pass.at(1) if self._credit_seconds is None else self._credit_seconds

    def _worst_loss(self, known: _Knowledge, num_tokens: int) -> float:
        """Seconds lost if all is proposed and nothing accepted."""
        each = self._pass.at(1) / 2 if known.seconds is None else known.seconds
        return num_tokens * each + self._pass.at(1 + num_tokens) - self._pass.at(1)

    def _is_curious(self) -> bool:
        """Whether there is credit to look again if drafts, given up by now, have become worth it."""
        return self._credit() > FIRST_CREDIT * self._pass.at(1) / 2

    def _experiment(self, limit: int) -> Choice:
        """The affordable round that is closest to paying."""
        choices = []
        for draft, known in enumerate(self._known):
            num_tokens = min(2, limit)
            if known.seconds is not None and self._worst_loss(known, num_tokens) <= self._credit():
                proposed, accepted = known.expected(num_tokens)
                rate = (1 + accepted) / (proposed * known.seconds + self._pass.at(1 + proposed))
                choices.append((rate, Choice(draft, num_tokens)))
        return max(choices, key=lambda pair: pair[0])[1] if choices else Choice(0, 0)


def paces(adaptive: bool, num_draft_tokens: Sequence[int]) -> list[Pace]:
    """The pace of every level that has a draft, the target's first.

    Args:
        adaptive: whether levels choose for themselves, and between all cheaper levels.
        num_draft_tokens: what each asks for otherwise.
    """
    if not adaptive:
        return [FixedPace(number) for number in num_draft_tokens]
    return [AdaptivePace(len(num_draft_tokens) - index) for index in range(len(num_draft_tokens))]
