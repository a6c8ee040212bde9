"""The description of a model, whatever its family, that both decoders read."""

from dataclasses import dataclass, replace
from functools import cached_property

from mxconv.arch.description import Attending, LayerInputs, LayerParts, Mtp
from mxconv.arch.elements import Mixture, Norm, StateSizes
from mxconv.arch.rope_parameters import RopeParameters

# what torch puts into the names of modules that it compiles, shards or checkpoints, and before those that it copies
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
COPIES = "module."


def without_wrappers(tensor: str) -> str:
    """Return a tensor's name without what torch.compile, FSDP or DistributedDataParallel added to it."""
    for word in WRAPPERS:
        tensor = tensor.replace(word, "")
    while tensor.startswith(COPIES):
        tensor = tensor.removeprefix(COPIES)
    return tensor


@dataclass(frozen=True)
class ModelConfig:
    """The description of one decoder, whatever its family. Names follow config.json where it has them."""

    model_type: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerParts, ...]
    final_norm: Norm
    tie_word_embeddings: bool  # whether the embedding is the output head too
    embedding: str = "model.embed_tokens.weight"  # the tensor's name
    head: str = "lm_head"  # the module that gives logits
    layer_prefix: str = "model.layers"  # of a layer's tensors, before its number
    positions: str | None = None  # a learned embedding of each position, the tensor's name; None is none
    embedding_multiplier: float = 1.0  # of the embedding's rows
    logit_multiplier: float = 1.0  # of what the head gives
    logit_cap: float | None = None  # c turns a logit s into c * tanh(s / c)
    layer_inputs: LayerInputs | None = None  # embeddings of the layers' own
    mtp: Mtp | None = None  # where a checkpoint keeps what was trained to predict a token further, if it has such
    towers: tuple[tuple[str, str], ...] = ()  # of a checkpoint that holds more: how names begin there, and here
    renamed: tuple[tuple[str, str], ...] = ()  # words in the names of some checkpoints, and those for them in others
    wrapper: str = ""  # what all names of this checkpoint begin with beside their own; see `whole_model.py`
    lacks: str = ""  # how names begin that this checkpoint, of a model without its output head's class, has without it

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def attentions(self) -> tuple[Attending, ...]:
        """The mixers that are attention, in the order of their layers."""
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, Attending))

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The place of each layer in a cache: among those with attention, or among those with a state."""
        attends = [isinstance(layer.mixer, Attending) for layer in self.layers]
        return tuple(attends[:index].count(kind) for index, kind in enumerate(attends))

    @cached_property
    def state_sizes(self) -> StateSizes | None:
        """The sizes of each layer with a state; None where all have attention.

        All such layers of a model are alike: families give one description to each.
        """
        sizes = {layer.mixer.state for layer in self.layers if not isinstance(layer.mixer, Attending)}
        assert len(sizes) < 2, "one state for all"
        return next(iter(sizes), None)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How many positions each layer with attention sees, a token's own included; None is all."""
        return tuple(mixer.window for mixer in self.attentions)

    @cached_property
    def num_key_value_heads(self) -> int:
        """Most of any layer: what a cache has room for; 0 where none attends, as of the next ones."""
        return max((mixer.num_key_value_heads for mixer in self.attentions), default=0)

    @cached_property
    def head_dim(self) -> int:
        """Largest of any layer: what a cache has room for."""
        return max((mixer.head_dim for mixer in self.attentions), default=0)

    @property
    def num_attention_heads(self) -> int:
        """Heads of the first layer with attention: where all layers are alike this and the next ones say everything."""
        return next((mixer.num_heads for mixer in self.attentions), 0)

    @property
    def intermediate_size(self) -> int:
        """The size of the first MLP; 0 where no layer has one."""
        return next((layer.mlp.size for layer in self.layers if layer.mlp is not None), 0)

    @property
    def rms_norm_eps(self) -> float:
        return self.final_norm.eps

    @property
    def rope(self) -> RopeParameters:
        """The rotation of the first layer that rotates; the default where none does."""
        ropes = (mixer.rope for mixer in self.attentions)
        return next((rope for rope in ropes if rope is not None), RopeParameters(10000.0))

    @property
    def qkv_bias(self) -> bool:
        return any(mixer.query.has_bias for mixer in self.attentions[:1])

    @property
    def output_bias(self) -> bool:
        return any(mixer.output.has_bias for mixer in self.attentions[:1])

    @property
    def mlp_bias(self) -> bool:
        mlp = self.layers[0].mlp
        return mlp is not None and (mlp.experts.has_bias if isinstance(mlp, Mixture) else mlp.down.has_bias)

    @property
    def qk_norm(self) -> bool:
        return any(mixer.query_norm is not None for mixer in self.attentions[:1])

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
        layers = (
            replace(layer, mixer=replace(layer.mixer, window=None)) if isinstance(layer.mixer, Attending) else layer
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def own_name(self, tensor: str) -> str | None:
        """This decoder's name of a tensor of the checkpoint; None where it is of another tower."""
        tensor = without_wrappers(tensor).removeprefix(self.wrapper)
        if self.lacks and not tensor.startswith((f"{self.head}.", "mtp.")):
            tensor = self.lacks + tensor
        for theirs, ours in self.towers:
            if tensor.startswith(theirs):
                return self._common_name(ours + tensor.removeprefix(theirs))
        return None if self.towers else self._common_name(tensor)

    def _common_name(self, tensor: str) -> str:
        for theirs, ours in self.renamed:
            tensor = tensor.replace(theirs, ours)
        return tensor
