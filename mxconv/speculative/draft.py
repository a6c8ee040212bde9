"""What a draft is: anything that can guess how a context goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mxconv.arrays import F32, F64
from mxconv.speculative.statistics import LevelStatistics


@dataclass(frozen=True)
class Proposal:
    """Tokens that may follow a context.

    Args:
        tokens: the guess, in order.
        distributions: where the tokens were drawn at random, (vocab_size,) float64 each: what token i was drawn from.
            Empty where they were not; a verifier then takes each for certain, whatever produced it.
        probabilities: the highest of the distribution that chose each token. Empty where the draft is no model of the
            same tokens.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)


class Draft(Protocol):
    """Whatever can guess. A model with a draft of its own is one; so is a look-up in a table."""

    @property
    def statistics(self) -> LevelStatistics: ...

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """At most `num_tokens` tokens that may follow; fewer, or none, where confidence is low.

        Whatever caches the draft touched are left fit for a continuation of `context` that differs.

        Args:
            context: all tokens so far, at least one.
            num_tokens: the most to propose.
            floor: a model stops behind the token with which the product of its probabilities falls below this; None
                leaves it at the draft's own confidence threshold, token by token. Other drafts need not heed it.
        """
        ...

    def observe(self, tokens: Sequence[int], logits: F32) -> None:
        """See what the level above evaluated: `logits[i]` (num_tokens, vocab_size) follow `tokens[i]`.

        Called after every verification, rejected tokens included. Most drafts have no use for it.
        """
        ...
