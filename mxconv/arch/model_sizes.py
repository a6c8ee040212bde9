"""The sizes of a model, from its description: what its layers store, read and compute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts, Mixer
from mxconv.arch.elements import GatedDeltaNet, Mamba2, Mixture, Mlp, Norm, ShortConvolution
from mxconv.arch.families.registry import describe
from mxconv.arch.fields import Fields
from mxconv.arch.required_tensors import mixer_tensors
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
    state_multiply_adds: int = 0  # of one new token with the state, at any context

    def positions(self, context: float) -> float:
        """Cached positions that a new token attends to."""
        return context if self.window is None else min(context, self.window)


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
            mixers=tuple(_mixer(layer.mixer, config.hidden_size) for layer in config.layers),
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
    mlp = layer.mlp
    places = {layer.before_mixer, layer.after_mixer, layer.before_mlp, layer.after_mlp}
    if isinstance(mlp, Mixture):
        places |= {mlp.before_experts, mlp.after_experts, mlp.before_shared, mlp.after_shared}
    count = sum(norm_numbers(norm, config.hidden_size) for norm in places)
    if layer.layer_input is not None:
        count += norm_numbers(layer.layer_input.norm, config.hidden_size)
    return count + (layer.scalar is not None)


def _mixer(mixer: Mixer, hidden_size: int) -> MixerCount:
    """Count a mixer. A layer that reads the keys and values of another stores none, and reads as much; a memory is
    scaled, read and added to: three or four products a number."""
    shapes = dict(mixer_tensors(mixer, hidden_size)).values()
    weights = sum(prod(shape) for shape in shapes if len(shape) == 2)
    vectors = sum(prod(shape) for shape in shapes) - weights
    if isinstance(mixer, Attention):
        keys = mixer.num_key_value_heads * mixer.head_dim
        return MixerCount(weights, vectors, 2 * keys, 2 * mixer.num_heads * mixer.head_dim, mixer.window)
    if isinstance(mixer, LatentAttention):
        products = mixer.num_heads * (mixer.head_dim + mixer.latent_size)
        return MixerCount(weights, vectors, mixer.head_dim, products)
    sizes = mixer.state
    convolution, memory = sizes.num_channels * sizes.kernel_size, prod(sizes.memory)
    products = {ShortConvolution: 2 * sizes.num_channels, GatedDeltaNet: 4 * memory, Mamba2: 3 * memory}[type(mixer)]
    return MixerCount(
        weights,
        vectors,
        kv_values=0,
        multiply_adds=0,
        state_values=(sizes.kernel_size - 1) * sizes.num_channels + memory,
        state_multiply_adds=convolution + products,
    )


def norm_numbers(norm: Norm | None, length: int) -> int:
    """How many numbers a norm over `length` numbers stores."""
    return 0 if norm is None else length * (norm.has_weight + norm.has_bias)
