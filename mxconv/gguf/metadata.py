"""The keys of a GGUF file that are not about tensors: architecture, tokenizer, chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.arch.config import ModelConfig
from mxconv.arch.fields import Fields
from mxconv.errors import ModelError
from mxconv.gguf.architectures import ARCHITECTURES, Architecture
from mxconv.gguf.exportability import activation_of, check_exportable
from mxconv.gguf.gguf_vocabulary import GgufVocabulary, read_vocabulary
from mxconv.gguf.written_keys import add_keys
from mxconv.text.chat_templates import read_templates

if TYPE_CHECKING:
    from gguf import GGUFWriter


@dataclass(frozen=True)
class Metadata:
    """Everything that both levels of a package have in common."""

    config: ModelConfig
    architecture: Architecture
    vocabulary: GgufVocabulary
    chat_templates: dict[str, str]  # "default" and others
    num_positions: int
    long_factors: tuple[float, ...] = ()  # LongRoPE's, for texts beyond its original context

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on where llama.cpp does not compute what mxconv does."""
        notes = []
        name, windows = self.architecture.name, [window for window in self.config.windows if window is not None]
        if windows and not self.architecture.windows and min(windows) < self.config.max_position_embeddings:
            notes.append(
                f"llama.cpp's {name} attends to all positions: beyond the model's window of {min(windows)} its text "
                "differs."
            )
        if self.architecture.rounds_yarn and not self.config.rope.truncates:
            notes.append(
                f"llama.cpp's {name} rounds where YaRN begins and ends: its logits differ, the more the later."
            )
        if any(activation_of(layer) == "gelu" for layer in self.config.layers):
            notes.append(f"llama.cpp's {name} computes GELU by tanh: its logits differ in the fourth digit or so.")
        if not self.vocabulary.has_bytes:
            notes.append("the vocabulary has no bytes: llama.cpp ends with an error at a character that it lacks.")
        if self.vocabulary.eos_id is None:
            notes.append("the configuration names no token that ends a text: llama.cpp takes its own default.")
        notes += self.vocabulary.notes
        return tuple(notes)

    def add_to(self, writer: "GGUFWriter") -> None:
        """Hand every key to a writer."""
        add_keys(writer, self.config, self.architecture, self.num_positions)
        self.vocabulary.add_to(writer)
        others = [{"name": name, "template": text} for name, text in self.chat_templates.items() if name != "default"]
        if others:
            writer.add_chat_template(others)
        if "default" in self.chat_templates:
            writer.add_chat_template(self.chat_templates["default"])


def read_metadata(folder: Path, config: ModelConfig) -> Metadata:
    """Read the tokenizer's files and what config.json says beside the description.

    Raises:
        MxconvError: one of them is missing or malformed, or llama.cpp has no such model or tokenizer.
    """
    path = folder / "config.json"
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ModelError(
            f"{path}: model_type {config.model_type}; the export to GGUF has {', '.join(ARCHITECTURES)}. Export with "
            "--to safetensors."
        )
    check_exportable(config, architecture, path)
    num_positions, long_factors = _long_context(config, path)
    vocabulary = read_vocabulary(folder, config.vocab_size)
    return Metadata(config, architecture, vocabulary, read_templates(folder)[0], num_positions, long_factors)


def _long_context(config: ModelConfig, path: Path) -> tuple[int, tuple[float, ...]]:
    """How long a text may be, and LongRoPE's factors for it: llama.cpp runs beyond the original context."""
    if config.rope.rope_type != "longrope":
        return config.max_position_embeddings, ()
    fields = Fields.read(path)
    found = fields.section("rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters").values
    factors = found.get("long_factor")
    if not isinstance(factors, list) or len(factors) != len(config.rope.factors):
        return config.max_position_embeddings, ()
    return fields.size("max_position_embeddings", config.max_position_embeddings), tuple(map(float, factors))
