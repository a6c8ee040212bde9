"""A network that reads another model's hidden states, as a hierarchy sees it."""

from dataclasses import dataclass

from mxconv.arch.config import ModelConfig
from mxconv.engine.cache import KVCache
from mxconv.engine.states import Reads
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
