"""The keys of a GGUF file that are not about tensors: architecture, tokenizer, chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.checkpoint.gguf.names import ARCHITECTURES
from mxconv.checkpoint.json_file import read_json_object
from mxconv.errors import ModelError
from mxconv.interop.gguf.vocabulary import Vocabulary, read_vocabulary
from mxconv.model.config import ModelConfig
from mxconv.model.families.table import describe_file

ROPE_TYPES = ("default", "linear", "llama3")

if TYPE_CHECKING:
    from gguf import GGUFWriter


@dataclass(frozen=True)
class Metadata:
    """Everything that both levels of a package have in common."""

    config: ModelConfig
    vocabulary: Vocabulary
    chat_templates: dict[str, str]  # "default" and others

    @property
    def architecture(self) -> str:
        """llama.cpp's name."""
        return ARCHITECTURES[self.config.model_type]

    @property
    def notes(self) -> tuple[str, ...]:
        """Where llama.cpp will not do what mxconv does."""
        notes = []
        windows = sorted({window for window in self.config.windows if window is not None})
        if windows and windows[0] < self.config.max_position_embeddings:
            notes.append(
                f"llama.cpp's {self.architecture} attends to all positions: beyond the model's window of {windows[0]} "
                "its text differs."
            )
        if not self.vocabulary.has_bytes:
            notes.append("the vocabulary has no bytes: llama.cpp ends with an error at a character that it lacks.")
        if self.vocabulary.eos_id is None:
            notes.append("the configuration names no token that ends a text: llama.cpp takes its own default.")
        return tuple(notes)

    def add_to(self, writer: "GGUFWriter") -> None:
        """Hand every key to a writer."""
        _add_architecture(writer, self.config)
        _add_vocabulary(writer, self.vocabulary)
        others = [{"name": name, "template": text} for name, text in self.chat_templates.items() if name != "default"]
        if others:
            writer.add_chat_template(others)
        if "default" in self.chat_templates:
            writer.add_chat_template(self.chat_templates["default"])


def read_metadata(folder: Path) -> Metadata:
    """Read config.json and the tokenizer's files.

    Raises:
        MxconvError: one of them is missing or malformed, or llama.cpp has no such model or tokenizer.
    """
    config = describe_file(folder / "config.json")
    if config.model_type not in ARCHITECTURES or config.towers:
        raise ModelError(
            f"{folder / 'config.json'}: model_type {config.model_type}; the export to GGUF has "
            f"{', '.join(ARCHITECTURES)}. Export with --to safetensors."
        )
    if config.rope.rope_type not in ROPE_TYPES:
        raise ModelError(
            f"{folder / 'config.json'}: rope_type {config.rope.rope_type}; the export to GGUF has "
            f"{', '.join(ROPE_TYPES)}. Export with --to safetensors."
        )
    if config.rope.rope_type == "llama3" and ARCHITECTURES[config.model_type] != "llama":
        raise ModelError(
            f"{folder / 'config.json'}: rope_type llama3 in a {config.model_type} model; llama.cpp reads it of llama "
            "alone. Export with --to safetensors."
        )
    if config.model_type == "qwen2" and config.head_dim * config.num_attention_heads != config.hidden_size:
        raise ModelError(
            f"{folder / 'config.json'}: {config.num_attention_heads} heads of {config.head_dim}; llama.cpp requires "
            f"of qwen2 that they make hidden_size, {config.hidden_size}. Export with --to safetensors."
        )
    return Metadata(config, read_vocabulary(folder, config.vocab_size), _chat_templates(folder))


def _add_architecture(writer: "GGUFWriter", config: ModelConfig) -> None:
    from gguf import RopeScalingType

    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    if config.rope.rope_type == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope.factor)
    if config.rope.rope_type == "llama3":  # the factors themselves are a tensor
        writer.add_rope_scaling_orig_ctx_len(config.rope.original_max_position_embeddings)


def _add_vocabulary(writer: "GGUFWriter", vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    # GGUF has a key each for one end of text, of turn and of message; llama.cpp stops at all of them
    ends = (vocabulary.eos_id, *vocabulary.further_eos_ids)[:3]
    keys = [
        (writer.add_unk_token_id, vocabulary.unknown_id),
        (writer.add_bos_token_id, vocabulary.bos_id),
        *zip((writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), ends, strict=False),
    ]
    for add, token_id in keys:
        if token_id is not None:
            add(token_id)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    writer.add_add_space_prefix(vocabulary.adds_space_prefix)


def _chat_templates(folder: Path) -> dict[str, str]:
    """By name; the file chat_template.jinja wins over tokenizer_config.json, as in transformers."""
    path, templates = folder / "tokenizer_config.json", {}
    found = read_json_object(path, unique_keys=False).get("chat_template") if path.is_file() else None
    if isinstance(found, str):
        templates["default"] = found
    elif isinstance(found, list):
        for entry in found:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name"))] = entry["template"]
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        templates["default"] = jinja.read_text(encoding="utf-8", errors="replace")
    return templates
