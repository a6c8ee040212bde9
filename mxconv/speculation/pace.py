"""How many tokens a level asks of which draft, round by round, and what it learns from every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mxconv.speculation.passes import ALONE, JointPass, Load


@dataclass(frozen=True)
class Choice:
    """Ask a draft for a number of tokens; 0 tokens mean plain decoding."""

    draft: int  # its number, the next level being 0
    num_tokens: int  # the most tokens of a path
    floor: float | None = None  # as `Draft.propose` takes it: it stops when its proposal becomes less probable
    floors: Sequence[float] = ()  # as `TreeDraft.grow` takes them; with any, the draft is asked for a tree


PLAIN = Choice(0, 0)


class Outcome(NamedTuple):
    """The result of a round."""

    num_proposed: int  # tokens that the draft proposed; of a tree, all nodes
    num_accepted: int
    num_evaluated: int  # tokens that the level's pass evaluated
    draft_seconds: float  # until the draft had proposed
    level_seconds: float  # of the level's own pass and judgement
    probabilities: Sequence[float] = ()  # of the proposed tokens by the draft, as `Proposal.chances` has them
    depth: int = 0  # tokens of the longest path that was proposed
    load: Load = ALONE  # what the level's pass carried
    joint: JointPass | None = None  # the level's pass, if shared with other texts; the seconds are then shares of it
    draft_sharers: float = 1.0  # how many texts shared the draft's passes, on average


class Pace(Protocol):
    """Chooses a draft and at most `limit` tokens, at least one, in every round, and learns from it.

    `of_text` gives the pace of one text among several that are decoded side by side; they share what they learn.
    """

    def of_text(self) -> "Pace": ...
    def choose(self, limit: int, load: Load = ALONE) -> Choice: ...
    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        """Whether it would choose plain decoding in so many rounds, which then need not ask it."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class FixedPace:
    """Always ask the next level for the same number; with `num_nodes`, for a tree of so many if it grows trees."""

    num_tokens: int
    num_nodes: int = 0

    def of_text(self) -> "FixedPace":
        return self

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        return Choice(0, min(self.num_tokens, limit), floors=(0.0,) * self.num_nodes)

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        return False

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass
