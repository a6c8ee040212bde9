"""The sizes of a model, from its description: what its layers store, read and compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts
from mxconv.arch.elements import Linear, Mlp, Norm
from mxconv.arch.families.registry import describe
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture
from mxconv.arch.state_mixers import GatedDeltaNet, Recurrent, ShortConvolution
from mxconv.errors import ModelError


@dataclass(frozen=True)
class MixerCount:
    """What the mixer of one layer stores, reads and computes: attention, or a recurrence with a state."""

    weights: int  # of its matrices
    vectors: int  # of its biases, sinks and norms of its own, and of what a recurrence has beside matrices
    # that one new token reads of a cached position; of latent vectors, which are keys and values at once
    kv_values: int
    multiply_adds: int  # of one new token with one cached position
    window: int | None = None  # positions that it sees, None is all
    state_values: int = 0  # float32 numbers of the state of one sequence, which a pass reads and writes
    row_values: int = 0  # float32 numbers that are kept of a row, to rebuild its state when later rows are rejected
    state_multiply_adds: int = 0  # of one new token with the state, at any context

    def positions(self, context: float) -> float:
        """Cached positions that a new token attends to."""
        return context if self.window is None else min(context, self.window)

    @classmethod
    def of(cls, layer: LayerParts, hidden_size: int) -> "MixerCount":
        """Count the mixer of a layer from its description."""
        if isinstance(layer.mixer, LatentAttention):
            return _latent(layer.mixer, hidden_size)
        if isinstance(layer.mixer, Attention):
            return _grouped(layer.mixer, hidden_size)
        return _recurrent(layer.mixer, hidden_size)


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that decide how much a model stores, reads and computes; names follow config.json.

    The numbers of heads are those of the first layer, for display; `mixers` has the cost of each layer.
    """

    model_type: str
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    mixers: tuple[MixerCount, ...]  # a layer's
    norms: tuple[int, ...]  # a layer: numbers of its norms, and a factor of its own
    dense_sizes: tuple[int, ...]  # a layer: intermediate size of its plain feed-forward part, 0 for none
    mlp_bias: bool
    has_experts: tuple[bool, ...] = ()  # a layer
    expert_size: int = 0  # intermediate size of one expert
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_bias: bool = False  # on the experts and their router
    router_vectors: int = 0  # numbers of a router beside its matrix
    shared_sizes: tuple[int, ...] = ()  # intermediate sizes of what all rows of layers with experts go through
    has_shared_gate: bool = False
    has_gate: bool = True  # a plain feed-forward part has three matrices, or two
    final_norm_bias: bool = False
    num_looked_up: int = 0  # numbers of tables beside the embedding: learned positions, embeddings of the layers' own
    layer_inputs: int = 0  # of the matrices, a layer, by which embeddings of its own come in

    @property
    def num_layers(self) -> int:
        return len(self.mixers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Positions that each layer sees; None is all."""
        return tuple(each.window for each in self.mixers)

    def with_windows(self, windows: Sequence[int | None]) -> "ModelSizes":
        """The architecture with other windows, one a layer."""
        each = zip(self.mixers, windows, strict=True)
        return replace(self, mixers=tuple(replace(count, window=window) for count, window in each))

    @property
    def num_expert_layers(self) -> int:
        return sum(self.has_experts)

    @classmethod
    def from_file(cls, path: Path) -> "ModelSizes":
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: a key is missing or ill-typed, or the kind of model is not known.
        """
        return cls.from_fields(Fields.read(path))

    @classmethod
    def from_fields(cls, fields: Fields) -> "ModelSizes":
        return cls.of(describe(fields))

    @classmethod
    def of(cls, config: ModelConfig) -> "ModelSizes":
        """Take the sizes of a model that mxconv runs. Raises ModelError where its mixtures of experts differ, or only
        some of its MLPs have gates or biases."""
        mlps = [layer.mlp for layer in config.layers if layer.mlp is not None]
        mixtures = [mlp for mlp in mlps if isinstance(mlp, Mixture)]
        dense = [mlp for mlp in mlps if not isinstance(mlp, Mixture)]
        kinds = (
            {replace(mixture, shared=None) for mixture in mixtures},
            {(mlp.gate is None, mlp.down.has_bias) for mlp in dense},
        )
        if any(len(kind) > 1 for kind in kinds):
            raise ModelError(
                f"{config.model_type}: mixtures of experts or MLPs of several kinds; models of one kind each are "
                "counted. Measure it with mxconv bench."
            )
        inputs = config.layer_inputs
        return cls(
            model_type=config.model_type,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            mixers=tuple(MixerCount.of(layer, config.hidden_size) for layer in config.layers),
            norms=tuple(_norm_numbers(config, layer) for layer in config.layers),
            dense_sizes=tuple(layer.mlp.size if isinstance(layer.mlp, Mlp) else 0 for layer in config.layers),
            has_experts=tuple(isinstance(layer.mlp, Mixture) for layer in config.layers),
            mlp_bias=any(mlp.down.has_bias for mlp in dense),
            has_gate=all(mlp.gate is not None for mlp in dense),
            shared_sizes=tuple(mixture.shared.size for mixture in mixtures if mixture.shared is not None),
            **(_of_mixture(mixtures[0], config.hidden_size) if mixtures else {}),
            final_norm_bias=config.final_norm.has_bias,
            num_looked_up=_num_looked_up(config),
            layer_inputs=0 if inputs is None else 3 * inputs.size * config.hidden_size,
        )


def _num_looked_up(config: ModelConfig) -> int:
    positions = config.max_position_embeddings * config.hidden_size if config.positions else 0
    inputs = config.layer_inputs
    return positions + (0 if inputs is None else config.vocab_size * config.num_hidden_layers * inputs.size)


def _of_mixture(mixture: Mixture, hidden_size: int) -> dict[str, Any]:
    routing = mixture.routing
    num_vectors = (routing.correction is not None) + (routing.multipliers is not None)
    return {
        "expert_size": mixture.experts.size,
        "num_experts": routing.num_experts,
        "num_experts_per_token": routing.num_chosen,
        "expert_bias": mixture.experts.has_bias,
        "router_vectors": routing.num_experts * num_vectors + hidden_size * (routing.input_weights is not None),
        "has_shared_gate": mixture.shared_gate is not None,
    }


def _norm_numbers(config: ModelConfig, layer: LayerParts) -> int:
    """How many numbers the norms of a layer store; a norm that two places share counts once."""
    mixer, mlp = layer.mixer, layer.mlp
    places = {layer.before_mixer, layer.after_mixer, layer.before_mlp, layer.after_mlp}
    if isinstance(mlp, Mixture):
        places |= {mlp.before_experts, mlp.after_experts, mlp.before_shared, mlp.after_shared}
    count = sum(norm_numbers(norm, config.hidden_size) for norm in places)
    if layer.layer_input is not None:
        count += norm_numbers(layer.layer_input.norm, config.hidden_size)
    if isinstance(mixer, LatentAttention):
        return (
            count
            + norm_numbers(mixer.query_norm, mixer.query_rank)
            + norm_numbers(mixer.latent_norm, mixer.latent_size)
        )
    if not isinstance(mixer, Attention):  # what it norms within is its own
        return count + (layer.scalar is not None)
    by_row = mixer.norm_span == "row"
    count += norm_numbers(mixer.query_norm, mixer.head_dim * (mixer.num_heads if by_row else 1))
    if mixer.source is None:
        count += norm_numbers(mixer.key_norm, mixer.head_dim * (mixer.num_key_value_heads if by_row else 1))
    return count + (layer.scalar is not None)


def _grouped(mixer: Attention, hidden_size: int) -> MixerCount:
    """Count attention over heads. A layer that reads the keys and values of another stores none, and reads as much."""
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_key_value_heads * mixer.head_dim
    outputs: list[tuple[Linear, int]] = [(mixer.query, queries * (2 if mixer.is_gated else 1))]
    if mixer.source is None:
        outputs.append((mixer.key, keys))
    if mixer.source is None and not mixer.keys_are_values:
        outputs.append((mixer.value, keys))
    return MixerCount(
        weights=hidden_size * (sum(length for _, length in outputs) + queries),
        vectors=sum(length * linear.has_bias for linear, length in outputs)
        + hidden_size * mixer.output.has_bias
        + mixer.num_heads * (mixer.sinks is not None),
        kv_values=2 * keys,
        multiply_adds=2 * queries,
        window=mixer.window,
    )


def _latent(mixer: LatentAttention, hidden_size: int) -> MixerCount:
    down = mixer.query_down
    queries = mixer.query_rank * mixer.num_heads * (mixer.plain_size + mixer.rotated_size)
    ups = mixer.latent_size * mixer.num_heads * (mixer.plain_size + mixer.value_size)
    return MixerCount(
        weights=(0 if down is None else hidden_size * mixer.query_rank)
        + queries
        + hidden_size * mixer.head_dim
        + ups
        + mixer.num_heads * mixer.value_size * hidden_size,
        vectors=(mixer.query_rank if down is not None and down.has_bias else 0)
        + mixer.head_dim * mixer.down.has_bias
        + hidden_size * mixer.output.has_bias,
        kv_values=mixer.head_dim,
        multiply_adds=mixer.num_heads * (mixer.head_dim + mixer.latent_size),
    )


def _recurrent(mixer: Recurrent, hidden_size: int) -> MixerCount:
    """Count a mixer with a state, whose memory is scaled, read and added to: three or four products a number."""
    sizes = mixer.state
    heads, rows, columns = sizes.memory
    memory = heads * rows * columns
    if isinstance(mixer, ShortConvolution):
        linears, norm, parameters, products = [(mixer.inputs, 3 * mixer.size)], 0, 0, 2 * mixer.size
        inner = mixer.size
    elif isinstance(mixer, GatedDeltaNet):
        num_values = mixer.num_values
        linears = [
            (mixer.queries_keys_values, 2 * mixer.num_keys + num_values),
            (mixer.gate, num_values),
            (mixer.beta, mixer.num_value_heads),
            (mixer.decay, mixer.num_value_heads),
        ]
        norm, parameters = norm_numbers(mixer.norm, mixer.value_dim), 2 * mixer.num_value_heads
        products, inner = 4 * memory, num_values
    else:
        linears = [(mixer.inputs, mixer.size + sizes.num_channels + mixer.num_heads)]
        norm, parameters = norm_numbers(mixer.norm, mixer.size), 3 * mixer.num_heads
        products, inner = 3 * memory, mixer.size
    convolution = sizes.num_channels * sizes.kernel_size
    biases = sum(length * linear.has_bias for linear, length in linears) + hidden_size * mixer.output.has_bias
    return MixerCount(
        weights=hidden_size * (sum(length for _, length in linears) + inner),
        vectors=biases + convolution + sizes.num_channels * mixer.convolution.has_bias + norm + parameters,
        kv_values=0,
        multiply_adds=0,
        state_values=(sizes.kernel_size - 1) * sizes.num_channels + memory,
        row_values=sizes.input_size,
        state_multiply_adds=convolution + products,
    )


def norm_numbers(norm: Norm | None, length: int) -> int:
    """How many numbers a norm over `length` numbers stores."""
    return 0 if norm is None else length * (norm.has_weight + norm.has_bias)
