"""The sizes of a model as its description gives them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts, Mlp
from mxconv.arch.families.table import describe
from mxconv.arch.fields import Fields
from mxconv.arch.latent import LatentAttention
from mxconv.arch.mixture import Mixture
from mxconv.cost.mixer_count import MixerCount, norm_numbers
from mxconv.errors import ModelError


@dataclass(frozen=True)
class Architecture:
    """What decides how much a model stores, reads and computes. Names follow config.json where it has them.

    Heads are those of the first layer, to be shown; what each layer's mixer costs is in `mixers`.
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
        """A layer: positions it sees, None is all."""
        return tuple(each.window for each in self.mixers)

    def with_windows(self, windows: Sequence[int | None]) -> "Architecture":
        """The same with these, one a layer."""
        each = zip(self.mixers, windows, strict=True)
        return replace(self, mixers=tuple(replace(count, window=window) for count, window in each))

    @property
    def num_expert_layers(self) -> int:
        return sum(self.has_experts)

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
        return cls.of(describe(fields))

    @classmethod
    def of(cls, config: ModelConfig) -> "Architecture":
        """Of a model that mxconv runs.

        Raises:
            ModelError: its mixtures of experts differ, or only some of its MLPs have gates or biases.
        """
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
    routing, vectors = mixture.routing, 0
    for name, length in (
        (routing.correction, routing.num_experts),
        (routing.multipliers, routing.num_experts),
        (routing.input_weights, hidden_size),
    ):
        vectors += 0 if name is None else length
    return {
        "expert_size": mixture.experts.size,
        "num_experts": routing.num_experts,
        "num_experts_per_token": routing.num_chosen,
        "expert_bias": mixture.experts.has_bias,
        "router_vectors": vectors,
        "has_shared_gate": mixture.shared_gate is not None,
    }


def _norm_numbers(config: ModelConfig, layer: LayerParts) -> int:
    """Of one layer; a norm that two places share is one."""
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
