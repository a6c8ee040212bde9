"""What all drafts have in common that read the target's hidden states."""

from typing import Protocol

from mxconv.arch.config import ModelConfig
from mxconv.engine.states import Reads
from mxconv.errors import ModelError


class ReaderSizes(Protocol):
    """By which it is known whether a draft can read a model."""

    @property
    def hidden_size(self) -> int:
        """Of the model that it reads."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def least_layers(self) -> int:
        """That the model which it reads must have."""
        ...


class Reader(ReaderSizes, Protocol):
    """A model whose input is what another one computed."""

    @property
    def reads(self) -> Reads:
        """The states that it needs."""
        ...

    @property
    def num_passes(self) -> int:
        """Passes that together read all its weights once."""
        ...


def check_target(reader: ReaderSizes, target: ModelConfig, num_tokens: int, name: str) -> None:
    """What every reader requires of the model that it reads: the same hidden size and tokens, and its layers.

    Args:
        reader: the draft.
        target: what it is to read.
        num_tokens: of the target's tokenizer.
        name: of the reader, for messages.

    Raises:
        ModelError: it has others.
    """
    if reader.hidden_size != target.hidden_size:
        raise ModelError(
            f"{name}: reads states of {reader.hidden_size} numbers, and the target's have {target.hidden_size}; the "
            "same hidden size is required. Use a draft that was trained for this target."
        )
    if reader.least_layers > target.num_hidden_layers:
        raise ModelError(
            f"{name}: reads layers up to {reader.least_layers - 1}, and the target's last is "
            f"{target.num_hidden_layers - 1}; layers of the target, numbered from 0, are required. Use a draft that "
            "was trained for this target."
        )
    if not num_tokens <= reader.vocab_size <= target.vocab_size:
        raise ModelError(
            f"{name}: a vocabulary of {reader.vocab_size} for a target with {num_tokens} tokens in {target.vocab_size} "
            "rows; the target's own is required. Use a draft that was trained for this target."
        )
