"""How many tokens a level requests of which draft, round by round, and what it learns from every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.passes import ALONE, JointPass, Load, Meter
from mxconv.speculation.proposal import Proposal


@dataclass(frozen=True)
class Choice:
    """A draft, its number with the next level being 0, and the limits of its proposal; 0 tokens are plain decoding."""

    draft: int
    limits: TreeLimits

    @property
    def num_tokens(self) -> int:
        """The most tokens of a path."""
        return self.limits.most_depth


PLAIN = Choice(0, TreeLimits.chain(0))
RESTING = Choice(0, TreeLimits.chain(0))  # another object: plain decoding of which nothing is learned


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

    @classmethod
    def of(
        cls, proposal: Proposal, num_accepted: int, num_evaluated: int, drafting: Meter, verifying: Meter, load: Load
    ) -> "Outcome":
        """The result of a round, with the time until the draft had proposed and the time after it."""
        return cls(
            len(proposal.tokens),
            num_accepted,
            num_evaluated,
            drafting.seconds,
            verifying.seconds,
            proposal.chances,
            proposal.depth,
            load,
            verifying.joint(load),
            drafting.sharers(load),
        )


class Pace(Protocol):
    """Chooses a draft and at most `limit` tokens, at least one, in every round, and learns from it.

    `of_text` gives the pace of one text among several that are decoded side by side; they share what they learn.
    """

    def of_text(self) -> "Pace": ...
    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        """The choice; `unread` are the numbers of tokens that each draft has to read before it can propose."""
        ...

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        """Whether it would choose plain decoding in so many rounds, in which it need not be queried."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class FixedPace:
    """Always request the same number of the next level; with `num_nodes`, a tree of so many."""

    num_tokens: int
    num_nodes: int = 0

    def of_text(self) -> "FixedPace":
        return self

    def choose(self, limit: int, load: Load = ALONE, unread: Sequence[int] = ()) -> Choice:
        count = min(self.num_tokens, limit)
        return Choice(0, TreeLimits(count, [0.0] * self.num_nodes) if self.num_nodes else TreeLimits.chain(count))

    def skip(self, num_rounds: int, load: Load = ALONE) -> bool:
        return False

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass
