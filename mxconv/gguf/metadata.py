"""The keys of a GGUF file as the export writes them: the architecture's sizes and numbers, tokenizer, chat template."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.arch.config import ModelConfig
from mxconv.arch.fields import Fields
from mxconv.errors import ModelError
from mxconv.gguf.architectures import ARCHITECTURES, Architecture
from mxconv.gguf.exportability import activation_of, check_exportable
from mxconv.gguf.gguf_vocabulary import GgufVocabulary, read_vocabulary
from mxconv.text.chat_templates import read_templates

if TYPE_CHECKING:
    from gguf import GGUFWriter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.elements import GatedDeltaNet, Mamba2, Mixture, ShortConvolution
from mxconv.gguf.architectures import attentions, first_mixture, states
from mxconv.gguf.rotations import add_rope

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


def add_keys(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture, num_positions: int) -> None:
    """Hand all of them to a writer; `num_positions` is how long a text may be."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(num_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    _add_sizes(writer.add_feed_forward_length, [0 if layer.mlp is None else layer.mlp.size for layer in config.layers])
    writer.add_head_count(config.num_attention_heads)
    _add_sizes(writer.add_head_count_kv, [_num_keys(layer, config, architecture) for layer in config.layers])
    _add_states(writer, config, architecture)
    _add_experts(writer, config, architecture)
    if config.final_norm.kind == "rms":
        writer.add_layer_norm_rms_eps(config.final_norm.eps)
    else:
        writer.add_layer_norm_eps(config.final_norm.eps)
    _add_heads(writer, config, architecture)
    add_rope(writer, config, architecture)
    _add_numbers(writer, config, architecture)
    _add_parts(writer, config, architecture)


def _add_sizes(add: Callable[[int | Sequence[int]], None], sizes: list[int]) -> None:
    """One number, or where layers differ a list."""
    add(sizes[0] if len(set(sizes)) == 1 else sizes)


def _num_keys(layer: LayerParts, config: ModelConfig, architecture: Architecture) -> int:
    """Key-value heads of a layer; llama.cpp knows one with a state by 0, unless a list names these."""
    if isinstance(layer.mixer, Attention):
        return layer.mixer.num_key_value_heads
    return config.num_key_value_heads if _lists_states(architecture) else 0


def _add_experts(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    if (mixture := first_mixture(config)) is None:
        return
    routing = mixture.routing
    writer.add_expert_count(routing.num_experts)
    writer.add_expert_used_count(routing.num_chosen)
    writer.add_expert_feed_forward_length(mixture.size)
    if architecture.experts == "keyed":
        from gguf import ExpertGatingFuncType

        writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(routing.is_normalized)
        writer.add_expert_weights_scale(routing.multiplier)
        writer.add_leading_dense_block_count(sum(not isinstance(layer.mlp, Mixture) for layer in config.layers))
        writer.add_expert_shared_count(0 if mixture.shared is None else mixture.shared.size // mixture.size)
    elif architecture.experts == "sigmoids":
        step = next(layer for layer, parts in enumerate(config.layers) if isinstance(parts.mlp, Mixture))
        writer.add_interleave_moe_layer_step(step + 1)
    elif mixture.shared is not None:
        writer.add_expert_shared_feed_forward_length(mixture.shared.size)


def _add_heads(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    if not (mixers := attentions(config)):
        return
    far = next((mixer for mixer in mixers if mixer.window is None), mixers[0])
    writer.add_key_length(far.head_dim)
    writer.add_value_length(far.head_dim)
    near = next((mixer for mixer in mixers if mixer.window is not None), None)
    if near is None or not architecture.windows:
        return
    assert near.window is not None
    writer.add_sliding_window(near.window)
    writer.add_sliding_window_pattern([window is not None for window in config.windows])
    if architecture.near_rope == "own":
        writer.add_key_length_swa(near.head_dim)
        writer.add_value_length_swa(near.head_dim)


def _add_numbers(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    first, mixer = config.layers[0], next(iter(attentions(config)), None)
    values: dict[str, tuple[Callable[[float], None], float | None]] = {
        "embedding_multiplier": (writer.add_embedding_scale, config.embedding_multiplier),
        "residual_multiplier": (writer.add_residual_scale, first.residual_multiplier),
        "logit_multiplier": (writer.add_logit_scale, config.logit_multiplier),
        "logit_divisor": (writer.add_logit_scale, 1 / config.logit_multiplier),
        "attention_cap": (writer.add_attn_logit_softcapping, None if mixer is None else mixer.logit_cap),
        "logit_cap": (writer.add_final_logit_softcapping, config.logit_cap),
    }
    for name, (add, value) in values.items():
        if name in architecture.numbers and value is not None:
            add(value)
    if mixer is not None and architecture.scale is None:
        writer.add_attention_scale(mixer.scale)
    if mixer is not None and mixer.temperature is not None and architecture.has_temperature:
        writer.add_attn_temperature_scale(mixer.temperature.beta)


def _add_parts(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    """Add keys that only some architectures ask for."""
    if architecture.name == "gptneox":
        writer.add_parallel_residual(config.layers[0].is_parallel)
    if architecture.name == "gemma4":
        writer.add_shared_kv_layers(sum(mixer.source is not None for mixer in attentions(config)))
        inputs = config.layer_inputs
        writer.add_embedding_length_per_layer_input(0 if inputs is None else inputs.size)


def _lists_states(architecture: Architecture) -> bool:
    """Whether a list names the layers that have a state; otherwise they are those without keys."""
    return architecture.state in ("delta_net", "fused_delta_net")


def _add_states(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    """Hand the keys to a writer."""
    if not (mixers := states(config)):
        return
    mixer, kernel_size = mixers[0], mixers[0].state.kernel_size
    if isinstance(mixer, ShortConvolution):
        writer.add_shortconv_l_cache(kernel_size)
        return
    writer.add_ssm_conv_kernel(kernel_size)
    if isinstance(mixer, GatedDeltaNet):
        sizes = mixer.num_values, mixer.key_dim, mixer.num_value_heads, mixer.num_key_heads
    else:
        sizes = mixer.size, mixer.state_size, mixer.num_heads, mixer.num_groups
    adders = (
        writer.add_ssm_inner_size,
        writer.add_ssm_state_size,
        writer.add_ssm_time_step_rank,  # llama.cpp's name for the number of heads
        writer.add_ssm_group_count,
    )
    for add, size in zip(adders, sizes, strict=True):
        add(size)
    if _lists_states(architecture):
        has_state = [not isinstance(layer.mixer, Attention) for layer in config.layers]
        writer.add_array(f"{architecture.name}.attention.recurrent_layers", has_state)
    if isinstance(mixer, Mamba2) and any(isinstance(layer.mixer, Attention) for layer in config.layers):
        writer.add_rope_scaling_finetuned(any(mixer.rope is not None for mixer in config.attentions))
