"""What a server asks of a draft that learns while it serves, which `mxconv.train` implements."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics

Weights = Literal["loaded", "learned"]  # before the first step of this process, and after it
Outcome = Literal["proposed", "accepted"]


class Learner(Protocol):
    """A draft whose weights change while no text is decoded. All calls come from the engine's thread.

    Attributes:
        name: of the level.
        num_steps: training steps of this process.
        num_tokens: of the draft, as the level above judged them.
    """

    name: str
    num_steps: int
    num_tokens: Counter[tuple[Weights, Outcome]]

    def observe(
        self, tokens: Sequence[int], num_prompt_tokens: int, session: Session, statistics: Sequence[LevelStatistics]
    ) -> None:
        """Remember a text whose decoding is over.

        Args:
            tokens: the prompt and the answer.
            num_prompt_tokens: of these.
            session: of the target, with the states of the tokens that it evaluated.
            statistics: of the levels over this text.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Whether texts were observed that it has not learned from as often as it should."""
        ...

    def learn(self) -> None:
        """Take one training step, and draft with its weights from now on; a step is some tenths of a second."""
        ...

    def save(self) -> None:
        """Write the weights, if they have changed since."""
        ...
