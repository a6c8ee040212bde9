"""The sizes of a model as its config.json gives them: dense decoders, and mixtures of experts, only counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxconv.errors import ModelError
from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts
from mxconv.model.families.keys import MOST_LAYERS
from mxconv.model.families.table import FAMILIES, TOWERS, describe
from mxconv.model.fields import Fields


@dataclass(frozen=True)
class Architecture:
    """What decides how much a model stores, reads and computes. Names follow config.json where it has them."""

    model_type: str
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    attention_sinks: bool  # a learned logit a head
    windows: tuple[int | None, ...]  # a layer: positions it sees, None is all
    dense_sizes: tuple[int, ...]  # a layer: intermediate size of its plain feed-forward part, 0 for none
    mlp_bias: bool
    expert_size: int = 0  # intermediate size of one expert
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_bias: bool = False  # on the experts and their router
    has_gate: bool = True  # a plain feed-forward part has three matrices, or two
    layer_norms: int | None = None  # numbers of a layer's norms; None is two norms, and those of queries and keys
    final_norm_bias: bool = False
    num_learned_positions: int = 0  # rows of a table beside the embedding

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def num_expert_layers(self) -> int:
        return sum(size == 0 for size in self.dense_sizes)

    @classmethod
    def from_file(cls, path: Path) -> "Architecture":
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: a key is missing or ill-typed, or the kind of model is not known.
        """
        return cls.from_fields(Fields.read(path))

    @classmethod
    def from_fields(cls, fields: Fields) -> "Architecture":
        mixtures = {"mixtral": _mixtral, "qwen3_moe": _qwen3_moe, "gpt_oss": _gpt_oss}
        read = mixtures.get(fields.choice("model_type", (*FAMILIES, *TOWERS, *mixtures)))
        if read is None:
            return cls.of(describe(fields))
        if fields.size("num_hidden_layers") > MOST_LAYERS:
            fields.reject("num_hidden_layers", f"at most {MOST_LAYERS} are supported")
        return read(fields)

    @classmethod
    def of(cls, config: ModelConfig) -> "Architecture":
        """Of a model that mxconv runs.

        Raises:
            ModelError: its layers differ in more than their windows, or do not all attend.
        """
        if config.state_sizes is not None or any(layer.mlp is None for layer in config.layers):
            raise ModelError(
                f"{config.model_type}: layers with a recurrent state; models that attend in every layer are counted. "
                "Measure it with mxconv bench."
            )
        first = config.layers[0]
        if any(_sizes(layer) != _sizes(first) for layer in config.layers):
            raise ModelError(
                f"{config.model_type}: layers with other heads or MLPs than the first; models whose layers are alike "
                "are counted. Measure it with mxconv bench."
            )
        return cls(
            model_type=config.model_type,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            qk_norm=config.qk_norm,
            attention_sinks=False,
            windows=config.windows,
            dense_sizes=(config.intermediate_size,) * config.num_hidden_layers,
            mlp_bias=config.mlp_bias,
            has_gate=first.mlp is not None and first.mlp.gate is not None,
            layer_norms=_norm_numbers(config, first),
            final_norm_bias=config.final_norm.has_bias,
            num_learned_positions=config.max_position_embeddings if config.positions else 0,
        )


def _sizes(layer: LayerParts) -> tuple[object, ...]:
    mixer, mlp = layer.mixer, layer.mlp
    assert isinstance(mixer, Attention) and mlp is not None
    return mixer.num_heads, mixer.num_key_value_heads, mixer.head_dim, mixer.source, mlp.size, layer.layer_input


def _norm_numbers(config: ModelConfig, layer: LayerParts) -> int:
    """Of one layer; a norm that two places share is one."""
    mixer = layer.mixer
    assert isinstance(mixer, Attention)
    places = {layer.before_mixer, layer.after_mixer, layer.before_mlp, layer.after_mlp} - {None}
    count = sum(config.hidden_size * (1 + norm.has_bias) for norm in places if norm is not None)
    by_row = mixer.norm_span == "row"
    if mixer.query_norm is not None:
        count += mixer.head_dim * (mixer.num_heads if by_row else 1)
    if mixer.key_norm is not None:
        count += mixer.head_dim * (mixer.num_key_value_heads if by_row else 1)
    return count + (layer.scalar is not None)


def _mixtral(fields: Fields) -> Architecture:
    num_layers = fields.size("num_hidden_layers")
    window = None if fields.values.get("sliding_window") is None else fields.size("sliding_window")
    return _mixture(
        fields,
        windows=(window,) * num_layers,
        dense_sizes=(0,) * num_layers,
        expert_size=fields.size("intermediate_size"),
        num_experts=fields.size("num_local_experts", 8),
        head_dim=max(fields.size("hidden_size") // fields.size("num_attention_heads"), 1),
    )


def _qwen3_moe(fields: Fields) -> Architecture:
    num_layers = fields.size("num_hidden_layers")
    step = fields.size("decoder_sparse_step", 1)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        fields.reject("mlp_only_layers", "a list of layer numbers is required")
    intermediate_size = fields.size("intermediate_size") if dense or step > 1 else 0
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]
    window = fields.size("sliding_window", 4096) if fields.flag("use_sliding_window", False) else None
    return _mixture(
        fields,
        windows=(window,) * num_layers,
        dense_sizes=[0 if is_sparse else intermediate_size for is_sparse in sparse],
        expert_size=fields.size("moe_intermediate_size"),
        num_experts=fields.size("num_experts"),
        head_dim=max(fields.size("hidden_size") // fields.size("num_attention_heads"), 1),
        qk_norm=True,
    )


def _gpt_oss(fields: Fields) -> Architecture:
    num_layers = fields.size("num_hidden_layers")
    window = fields.size("sliding_window", 128)
    kinds = fields.values.get("layer_types")
    if kinds is None:  # as transformers: every other layer sees a window, the first one too
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(num_layers)]
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        fields.reject("layer_types", f"{num_layers} names, each one of {', '.join(known)}, are required")
    return _mixture(
        fields,
        windows=[known[kind] for kind in kinds],
        dense_sizes=(0,) * num_layers,
        expert_size=fields.size("intermediate_size"),
        num_experts=fields.size("num_local_experts"),
        head_dim=64,
        has_bias=True,
        attention_sinks=True,
        expert_bias=True,
    )


def _mixture(
    fields: Fields,
    windows: Sequence[int | None],
    dense_sizes: Sequence[int],
    expert_size: int,
    num_experts: int,
    head_dim: int,
    qk_norm: bool = False,
    has_bias: bool = False,
    attention_sinks: bool = False,
    expert_bias: bool = False,
) -> Architecture:
    """What the mixtures have in common; `head_dim` and `has_bias` are for a config that lacks those keys."""
    num_heads = fields.size("num_attention_heads")
    attention_bias = fields.flag("attention_bias", has_bias)
    num_experts_per_token = fields.size("num_experts_per_tok")
    if num_experts_per_token > num_experts:
        fields.reject("num_experts_per_tok", f"at most the number of experts, {num_experts}, is required")
    return Architecture(
        model_type=fields.values["model_type"],
        hidden_size=fields.size("hidden_size"),
        num_attention_heads=num_heads,
        num_key_value_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=fields.size("head_dim", head_dim),
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings", 131072),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=qk_norm,
        attention_sinks=attention_sinks,
        windows=tuple(windows),
        dense_sizes=tuple(dense_sizes),
        mlp_bias=False,
        expert_size=expert_size,
        num_experts=num_experts,
        num_experts_per_token=num_experts_per_token,
        expert_bias=expert_bias,
    )
