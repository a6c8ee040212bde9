"""Networks that read another model's hidden states; some propose by stages, each a token.

Rows of one stage may be shared by several texts.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.sequence_rows import Reads
from mxconv.errors import ModelError


@dataclass(frozen=True)
class ReaderSizes:
    """The sizes of the models that a reader can read, and of its proposals."""

    hidden_size: int
    vocab_size: int
    least_layers: int = 1
    most_tokens: int | None = None  # of a proposal; None where there is no limit

    def check_target(self, target: ModelConfig, num_tokens: int, name: str) -> None:
        """Check that a model, with `num_tokens` in its tokenizer, can be read by the reader of a name.

        Raises:
            ModelError: it has another hidden size, other tokens, or too few layers.
        """
        if self.hidden_size != target.hidden_size:
            raise ModelError(
                f"{name}: reads states of {self.hidden_size} numbers, and the target's have {target.hidden_size}; the "
                "same hidden size is required. Use a draft that was trained for this target."
            )
        if self.least_layers > target.num_hidden_layers:
            raise ModelError(
                f"{name}: reads layers up to {self.least_layers - 1}, and the target's last is "
                f"{target.num_hidden_layers - 1}; layers of the target, numbered from 0, are required. Use a draft "
                "that was trained for this target."
            )
        if not num_tokens <= self.vocab_size <= target.vocab_size:
            raise ModelError(
                f"{name}: a vocabulary of {self.vocab_size} for a target with {num_tokens} tokens in "
                f"{target.vocab_size} rows; the target's own is required. Use a draft that was trained for this target."
            )


class Reader:
    """A network whose input is what another model computed."""

    def __init__(self, sizes: ReaderSizes, reads: Reads, name: str) -> None:
        self.sizes = sizes
        self.reads = reads
        self.name = name

    def text_cache(self) -> KVCache | None:
        """An empty cache, where a text has one of the reader's that grows with it; None of others."""
        return None


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
