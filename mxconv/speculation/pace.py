"""How many tokens a level asks of which draft, round by round, and what it learns from every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mxconv.drafts.passes import ALONE, JointPass, Load


@dataclass(frozen=True)
class Choice:
    """Ask the level's draft number `draft` for `num_tokens` tokens; 0 tokens mean plain decoding.

    Args:
        draft: the number of the draft, the next level being 0.
        num_tokens: the most tokens of a path.
        floor: as `Draft.propose` takes it: the draft stops when its proposal becomes less probable.
        floors: as `TreeDraft.grow` takes them; with any, the draft is asked for a tree.
    """

    draft: int
    num_tokens: int
    floor: float | None = None
    floors: Sequence[float] = ()


PLAIN = Choice(0, 0)


@dataclass(frozen=True)
class Outcome:
    """The result of a round.

    Args:
        num_proposed: tokens that the draft proposed; of a tree, all nodes.
        num_accepted: those of them that were accepted.
        num_evaluated: tokens that the level's pass took in.
        draft_seconds: the time until the draft had proposed.
        level_seconds: the time of the level's own pass and judgement.
        probabilities: of the proposed tokens in the draft's opinion, as `Proposal.chances` has them.
        depth: tokens of the longest path that was proposed.
        load: what the level's pass carried.
        joint: the level's pass, where other texts had rows in it; the seconds above are then this text's shares.
        draft_sharers: how many texts shared the draft's passes, on average.
    """

    num_proposed: int
    num_accepted: int
    num_evaluated: int
    draft_seconds: float
    level_seconds: float
    probabilities: Sequence[float] = ()
    depth: int = 0
    load: Load = ALONE
    joint: JointPass | None = None
    draft_sharers: float = 1.0


class Pace(Protocol):
    def of_text(self) -> "Pace":
        """A pace for one text among several that are decoded side by side; they share what they learn."""
        ...

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        """Choose a draft and at most `limit` tokens (at least one)."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        """Learn from a round."""
        ...


@dataclass(frozen=True)
class FixedPace:
    """Always ask the next level for the same number; with `num_nodes`, for a tree of so many if it grows trees."""

    num_tokens: int
    num_nodes: int = 0

    def of_text(self) -> "FixedPace":
        return self

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        return Choice(0, min(self.num_tokens, limit), floors=(0.0,) * self.num_nodes)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass
