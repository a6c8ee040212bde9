"""What all networks have in common that read the target's hidden states."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mxconv.arch.config import ModelConfig
from mxconv.arch.fields import Fields
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


class ReaderConfig(ABC):
    """The config.json of a network that reads hidden states; names follow the file."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: it is of another kind, or a key is missing, ill-typed, out of range or not supported.
        """
        return cls.from_fields(Fields.read(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The same from the parsed content of config.json."""
        return cls.from_fields(Fields(values, "config.json"))

    @classmethod
    @abstractmethod
    def from_fields(cls, fields: Fields) -> Self: ...

    @property
    @abstractmethod
    def sizes(self) -> ReaderSizes: ...

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The states that it reads of a target of `num_layers`, where the file names them or leaves them to its depth.

        Raises:
            ModelError: the target does not have them.
        """
        return ()


class Reader:
    """A network whose input is what another model computed."""

    def __init__(self, sizes: ReaderSizes, reads: Reads, name: str) -> None:
        self.sizes = sizes
        self.reads = reads
        self.name = name


OF_FORMAT = {"eagle3": "eagle3", "peagle": "p-eagle", "dflash": "dflash", "dspark": "dflash"}
OF_MODEL_TYPE = {
    "mlp_speculator": "speculator",
    "spire": "spire",
    "gemma4_assistant": "gemma4-assistant",
    "medusa": "medusa",
}


def reader_of(config: Mapping[str, object]) -> str | None:
    """The kind of reader that a config.json describes; None where it describes anything else."""
    for kind in ("medusa", "hydra"):
        if f"{kind}_num_heads" in config and "hidden_size" not in config:  # a whole model has its own size
            return kind
    if "dflash_config" in config:
        return "dflash"
    own = OF_FORMAT.get(str(config.get("speculators_model_type")))
    return own or OF_MODEL_TYPE.get(str(config.get("model_type")))
