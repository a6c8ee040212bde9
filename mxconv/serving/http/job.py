"""A request that has been understood: token ids, and how to decode them."""

from dataclasses import dataclass, replace

from mxconv.speculation.sampling_in_use import SamplingInUse
from mxconv.speculation.selection import MAX_SEED, Selection


@dataclass(frozen=True)
class Prompt:
    """One of a request's prompts.

    Args:
        token_ids: as the target hears it.
        text: what `echo` shows; empty where nobody asks.
    """

    token_ids: list[int]
    text: str = ""


@dataclass(frozen=True)
class Job:
    """What to decode.

    Args:
        prompts: one of a chat, one or more of completions.
        num_choices: of each prompt.
        max_new_tokens: of each choice; 0 where prompts alone are wanted.
        selection: of the first choice of each prompt.
        sampling: the same by parameters, and why so; clients are told.
        stop_strings: that end a choice.
        num_logprobs: likeliest tokens to name at every place; None computes no logprobs.
        wants_trace: whether clients are told which level guessed a token.
        scores_prompts: whether the tokens of prompts have logprobs too.
    """

    prompts: list[Prompt]
    num_choices: int
    max_new_tokens: int
    selection: Selection
    sampling: SamplingInUse
    stop_strings: list[str]
    num_logprobs: int | None = None
    wants_trace: bool = False
    scores_prompts: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.num_choices

    @property
    def seed(self) -> int:
        return self.selection.seed

    def selection_of(self, choice: int) -> Selection:
        """Choices of a prompt draw with the seeds `seed`, `seed + 1` and so on."""
        return replace(self.selection, seed=(self.seed + choice) % (MAX_SEED + 1))
