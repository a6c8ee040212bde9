"""What a round of a level and what a whole prompt become."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mxconv.arrays import F32, F64
from mxconv.speculation.statistics import Trace


class Step(NamedTuple):
    """The outcome of one round: tokens that this level itself would have chosen, with the logits that chose them."""

    tokens: list[int]
    logits: F32  # (len(tokens), vocab_size): the model's own, before penalties
    distributions: list[F64]  # as Verdict has them
    guessed_by: Sequence[str | None] = ()  # of each token whose guess it was; None: the level chose it without one

    def until(self, stop_tokens: Collection[int]) -> "Step":
        """The tokens up to and with the first of some; without logits of others."""
        place = next((place for place, token in enumerate(self.tokens) if token in stop_tokens), None)
        if place is None:
            return self
        stop = place + 1
        return Step(self.tokens[:stop], self.logits[:stop], self.distributions[:stop], self.guessed_by[:stop])


Ending = Literal["length", "stop", "interrupted", "error"]


@dataclass
class Generation:
    """What one prompt became; it grows while it is decoded."""

    trace: Trace
    token_ids: list[int] = field(default_factory=list)  # new ones, a final stop token included
    seconds: float = 0.0
    prompt_seconds: float = 0.0  # of these, until the first token
    ending: Ending = "interrupted"

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0

    @property
    def decoding_tokens_per_second(self) -> float | None:
        """The rate after the first token, which comes with the prompt; None where there is no second one."""
        seconds, num_tokens = self.seconds - self.prompt_seconds, len(self.token_ids) - 1
        return num_tokens / seconds if num_tokens > 0 and seconds > 0 else None
