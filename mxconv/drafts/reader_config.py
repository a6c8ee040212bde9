"""The config.json of networks that read the target's hidden states, and which kind it describes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mxconv.arch.fields import Fields
from mxconv.speculation.reader import ReaderSizes


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


OF_FORMAT = {"eagle3": "eagle3", "dflash": "dflash"}
OF_MODEL_TYPE = {
    "mlp_speculator": "speculator",
    "spire": "spire",
    "gemma4_assistant": "gemma4-assistant",
    "medusa": "medusa",
}


def reader_of(config: Mapping[str, object]) -> str | None:
    """The kind of reader that a config.json describes; None where it describes anything else."""
    if "medusa_num_heads" in config and "hidden_size" not in config:  # a whole model has its own size
        return "medusa"
    if "dflash_config" in config:
        return "dflash"
    own = OF_FORMAT.get(str(config.get("speculators_model_type")))
    return own or OF_MODEL_TYPE.get(str(config.get("model_type")))
