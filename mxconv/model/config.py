"""What a model is made of, whatever its family: what both decoders read."""

from dataclasses import dataclass, replace
from functools import cached_property

from mxconv.model.description import LayerInputs, LayerParts, Norm
from mxconv.model.mixture import Mixture
from mxconv.model.rope_parameters import RopeParameters


@dataclass(frozen=True)
class ModelConfig:
    """The description of one decoder, whatever its family. Names follow config.json where it has them.

    Args:
        layers: in their order.
        final_norm: behind them.
        tie_word_embeddings: whether the embedding is the output head too.
        embedding: the tensor's name.
        head: the module that gives logits.
        layer_prefix: of a layer's tensors, before its number.
        positions: a learned embedding of each position, the tensor's name; None is none.
        embedding_multiplier: of the embedding's rows.
        logit_multiplier: of what the head gives.
        logit_cap: c turns a logit s into c * tanh(s / c).
        layer_inputs: embeddings of the layers' own.
        towers: of a checkpoint that holds more than this decoder: how its tensors' names begin there, and here.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerParts, ...]
    final_norm: Norm
    tie_word_embeddings: bool
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head"
    layer_prefix: str = "model.layers"
    positions: str | None = None
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_cap: float | None = None
    layer_inputs: LayerInputs | None = None
    towers: tuple[tuple[str, str], ...] = ()

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """A layer: how many positions it sees, itself included; None is all."""
        return tuple(layer.mixer.window for layer in self.layers)

    @property
    def num_key_value_heads(self) -> int:
        """Most of any layer: what a cache has room for."""
        return max(layer.mixer.num_key_value_heads for layer in self.layers)

    @property
    def head_dim(self) -> int:
        """Largest of any layer: what a cache has room for."""
        return max(layer.mixer.head_dim for layer in self.layers)

    @property
    def num_attention_heads(self) -> int:
        """Of the first layer, as are the next ones: where all layers are alike these say everything."""
        return self.layers[0].mixer.num_heads

    @property
    def intermediate_size(self) -> int:
        return self.layers[0].mlp.size

    @property
    def rms_norm_eps(self) -> float:
        return self.final_norm.eps

    @property
    def rope(self) -> RopeParameters:
        """Of the first layer that rotates; the default where none does."""
        ropes = (layer.mixer.rope for layer in self.layers)
        return next((rope for rope in ropes if rope is not None), RopeParameters(10000.0))

    @property
    def qkv_bias(self) -> bool:
        return self.layers[0].mixer.query.has_bias

    @property
    def output_bias(self) -> bool:
        return self.layers[0].mixer.output.has_bias

    @property
    def mlp_bias(self) -> bool:
        mlp = self.layers[0].mlp
        return mlp.experts.has_bias if isinstance(mlp, Mixture) else mlp.down.has_bias

    @property
    def qk_norm(self) -> bool:
        return self.layers[0].mixer.query_norm is not None

    @property
    def looked_up(self) -> tuple[str, ...]:
        """The tensors of which a pass takes rows: they stay exact in a draft."""
        inputs = () if self.layer_inputs is None else (self.layer_inputs.table,)
        return (self.embedding, *inputs, *(() if self.positions is None else (self.positions,)))

    @cached_property
    def _expert_prefixes(self) -> tuple[str, ...]:
        mixtures = ((index, layer.mlp) for index, layer in enumerate(self.layers) if isinstance(layer.mlp, Mixture))
        return tuple(
            f"{self.layer_prefix}.{index}.{name.partition('{}')[0]}"
            for index, mixture in mixtures
            for name in mixture.experts.apart or ()
        )

    def is_expert(self, tensor: str) -> bool:
        """Whether a tensor is of one expert, which a pass reads where a row has chosen it."""
        return tensor.startswith(self._expert_prefixes)

    def without_windows(self) -> "ModelConfig":
        """The same model, every layer of which sees all positions that it is given."""
        layers = (replace(layer, mixer=replace(layer.mixer, window=None)) for layer in self.layers)
        return replace(self, layers=tuple(layers))

    def own_name(self, tensor: str) -> str | None:
        """What this decoder calls a tensor of the checkpoint; None where it is of another tower."""
        for theirs, ours in self.towers:
            if tensor.startswith(theirs):
                return ours + tensor.removeprefix(theirs)
        return None if self.towers else tensor
