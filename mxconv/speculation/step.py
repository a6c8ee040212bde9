"""What a round of a level came to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mxconv.arrays import F32, F64


@dataclass(frozen=True)
class Step:
    """The outcome of one round: tokens that this level itself would have chosen, with the logits that chose them."""

    tokens: list[int]
    logits: F32  # (len(tokens), vocab_size): the model's own, before penalties
    distributions: list[F64]  # as Verdict has them
    guessed_by: Sequence[str | None] = ()  # of each token whose guess it was; None: nobody's, this level said it itself

    def until(self, stop_tokens: Collection[int]) -> "Step":
        """The tokens up to and with the first of some; without logits of others."""
        place = next((place for place, token in enumerate(self.tokens) if token in stop_tokens), None)
        if place is None:
            return self
        stop = place + 1
        return Step(self.tokens[:stop], self.logits[:stop], self.distributions[:stop], self.guessed_by[:stop])
