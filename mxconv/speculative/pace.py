"""How many tokens a level asks of which draft, round by round, and what it is told of every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Choice:
    """Ask `num_tokens` of the level's draft number `draft`; 0 tokens: decode plainly.

    `floor` is what `Draft.propose` takes: how improbable a proposal may become before the draft stops.
    """

    draft: int
    num_tokens: int
    floor: float | None = None


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
        probabilities: of the proposed tokens in the draft's opinion, as `Proposal` has them.
    """

    num_proposed: int
    num_accepted: int
    num_evaluated: int
    draft_seconds: float
    level_seconds: float
    probabilities: Sequence[float] = ()


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
