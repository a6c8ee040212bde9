"""Readers that propose by stages, each a token, and rows of one stage, which several texts may share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.speculation.reader import Reader

MOST_STAGES = 64  # tokens that a proposal may have


class StagedReader(Reader, ABC):
    """A network whose stages go on from the state that chose the context's last token."""

    num_stages: int
    reads_tokens = True  # whether a stage depends on the tokens before its own

    def begin(self, states: F32) -> F32:
        """What the target's states (n, hidden_size) are to the first stage, a row each."""
        return states

    @abstractmethod
    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        """One stage: the states after tokens, from those that chose them."""

    @abstractmethod
    def logits(self, index: int, states: F32) -> F32:
        """(n, vocab_size) float32: the logits of a stage's states."""


@dataclass(frozen=True, eq=False)
class StageRows:
    """Rows of one stage of a reader: each of a state and the token that it chose."""

    reader: StagedReader
    index: int
    states: F32  # (num_rows, as many numbers as the stage takes)
    tokens: Sequence[int]

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def evaluate(self) -> tuple[F32, F32]:
        """The states after these tokens, a row each, and their logits, (num_rows, vocab_size)."""
        states = self.reader.advance(self.index, self.states, self.tokens)
        return states, self.reader.logits(self.index, states)

    @staticmethod
    def joined(parts: Sequence["StageRows"]) -> "StageRows":
        """Rows of the same stage, one after the other."""
        tokens = [token for part in parts for token in part.tokens]
        return StageRows(parts[0].reader, parts[0].index, np.concatenate([part.states for part in parts]), tokens)
