"""What one prompt becomes."""

from dataclasses import dataclass, field
from typing import Literal

from mxconv.drafts.statistics import Trace

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
