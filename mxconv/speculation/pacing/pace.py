"""How many tokens a level asks of which draft, round by round, and what it is told of every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mxconv.drafts.passes import ALONE, JointPass, Load


@dataclass(frozen=True)
class Choice:
    """Ask `num_tokens` of the level's draft number `draft`; 0 tokens: decode plainly.

    `floor` is what `Draft.propose` takes: how improbable a proposal may become before the draft stops. With `floors` it
    is asked for a tree, as deep as `num_tokens`, by `TreeDraft.grow`, which takes both.
    """

    draft: int
    num_tokens: int
    floor: float | None = None
    floors: Sequence[float] = ()


PLAIN = Choice(0, 0)


@dataclass(frozen=True)
class Outcome:
    """What became of a choice.

    Args:
        num_proposed: by the draft, at most as many as it was asked for; of a tree, all nodes.
        num_accepted: of these.
        num_evaluated: tokens that the level's forward pass took in.
        draft_seconds: until the draft had proposed.
        level_seconds: of the level's own pass and judgement.
        probabilities: of the proposed tokens in the draft's opinion, as `Proposal` has them; of a tree, those of each
            node's whole path.
        depth: tokens of the longest path that was proposed.
        load: of the level's pass.
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
        """For one text among several that are decoded side by side; what it learns all know."""
        ...

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        """What to ask for, at most `limit` tokens (at least one)."""
        ...

    def learn(self, choice: Choice, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class FixedPace:
    """Always the same number, of the next level; with `num_nodes`, a tree of so many if that level grows trees."""

    num_tokens: int
    num_nodes: int = 0

    def of_text(self) -> "FixedPace":
        return self

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        return Choice(0, min(self.num_tokens, limit), floors=(0.0,) * self.num_nodes)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        pass
