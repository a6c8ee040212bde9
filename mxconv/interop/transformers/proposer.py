"""What a round of decoding asks of drafts, wherever they run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from mxconv.drafts.statistics import LevelStatistics
from mxconv.interop.transformers.target import TorchTarget


class Proposer(Protocol):
    """Drafts at work on one text that grows. `statistics` is what each of them did."""

    statistics: list[LevelStatistics]

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens that may follow."""
        ...

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """What became of the last proposal; see `DraftChain.learn`."""
        ...


class Proposers(Protocol):
    """Drafts that wait for a text."""

    def begin(self, target: TorchTarget) -> AbstractContextManager[Proposer]:
        """Drafts for one text of this target."""
        ...

    def close(self) -> None:
        """Let go of what they hold on a device."""
        ...
