"""What all networks have in common that read the target's hidden states."""

from collections.abc import Mapping
from dataclasses import dataclass

from mxconv.arch.config import ModelConfig
from mxconv.engine.states import Reads
from mxconv.errors import ModelError


@dataclass(frozen=True)
class ReaderSizes:
    """The sizes of a reader that decide which models it can read.

    Args:
        hidden_size: of the model that it reads.
        vocab_size: of that model.
        least_layers: that the model must have.
        most_tokens: of a proposal; None where there is no limit.
    """

    hidden_size: int
    vocab_size: int
    least_layers: int = 1
    most_tokens: int | None = None

    def check_target(self, target: ModelConfig, num_tokens: int, name: str) -> None:
        """Check that a model can be read: the same hidden size and tokens, and its layers.

        Args:
            target: the model.
            num_tokens: of its tokenizer.
            name: of the reader, for messages.

        Raises:
            ModelError: it has others.
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
    """A network whose input is what another model computed.

    Args:
        sizes: of the models that it can read.
        reads: the states that it needs.
        name: for messages.
    """

    def __init__(self, sizes: ReaderSizes, reads: Reads, name: str) -> None:
        self.sizes = sizes
        self.reads = reads
        self.name = name


def reader_of(config: Mapping[str, object]) -> str | None:
    """The kind of reader that a config.json describes; None where it describes anything else."""
    if config.get("speculators_model_type") == "eagle3":
        return "eagle3"
    return {"mlp_speculator": "speculator", "spire": "spire"}.get(str(config.get("model_type")))
