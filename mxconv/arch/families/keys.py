"""The keys that most families' config.json share, and the parts that follow from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts, Mixer
from mxconv.arch.elements import Activation, Linear, Mixture, Mlp, Norm
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters, scaling_of

MOST_LAYERS = 4096  # the deepest published models have a few hundred; sizes in a file are not trusted
LAYER_NORM: dict[str, Any] = {"kind": "layer", "has_bias": True}  # for `Keys.read`
SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "relu2",
}


@dataclass(frozen=True)
class Keys:
    """Sizes of a decoder. Names follow config.json."""

    fields: Fields  # the file
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    eps: float  # of all norms
    norm_kind: Mapping[str, Any]  # what all norms of the family have besides, for `Norm`

    @classmethod
    def read(
        cls,
        fields: Fields,
        max_positions: int,
        eps: float = 1e-6,
        eps_key: str = "rms_norm_eps",
        head_dim: int | None = None,
        num_key_value_heads: int | None = None,
        **norm_kind: Any,
    ) -> "Keys":
        """Read them; arguments are what counts where config.json does not say.

        Args:
            eps_key: what the family calls the norms' epsilon.
            head_dim: None is the hidden size divided by the heads.
            num_key_value_heads: None is a pair of key and value for each head.
            norm_kind: what the family's norms are, where they are not RMS norms as Llama has them.

        Raises:
            ModelError: a key is missing, ill-typed or impossible.
        """
        num_heads = fields.size("num_attention_heads")
        num_layers = fields.size("num_hidden_layers")
        if num_layers > MOST_LAYERS:
            fields.reject("num_hidden_layers", f"at most {MOST_LAYERS} are supported")
        key_value_heads = fields.size("num_key_value_heads", num_key_value_heads or num_heads)
        if num_heads % key_value_heads:
            fields.reject("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}, is required")
        return cls(
            fields=fields,
            model_type=fields.values["model_type"],
            hidden_size=fields.size("hidden_size"),
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=key_value_heads,
            head_dim=_head_dim(fields, num_heads, head_dim),
            vocab_size=fields.size("vocab_size"),
            max_position_embeddings=fields.size("max_position_embeddings", max_positions),
            eps=fields.number(eps_key, eps),
            norm_kind=norm_kind,
        )

    def rope(self, theta: float = 10000.0, share: float | None = None) -> RopeParameters:
        """One set of rotations for all layers, as `RopeParameters.from_fields` reads them."""
        rope = RopeParameters.from_fields(self.fields, self.max_position_embeddings, theta, share)
        if rope.rotary_dim(self.head_dim) == 0:
            self.fields.reject("partial_rotary_factor", f"more, of heads of {self.head_dim} values, is required")
        pairs = (rope.rotary_dim(self.head_dim) + 1) // 2
        if rope.rope_type == "longrope" and len(rope.factors) != pairs:
            scaling_of(self.fields).reject("short_factor", f"{pairs} numbers, one a pair, are required")
        return rope

    @staticmethod
    def ignoring(fields: Fields, *names: str) -> Fields:
        """The file without keys that other families have and transformers ignores in this one."""
        return replace(fields, values={key: value for key, value in fields.values.items() if key not in names})

    def norm(self, name: str, **changes: Any) -> Norm:
        """One of the model's norms."""
        return Norm(name, self.eps, **{**self.norm_kind, **changes})

    def attention(
        self, rope: RopeParameters | None, qkv_bias: bool = False, output_bias: bool = False, **changes: Any
    ) -> Attention:
        """Attention with the names that Llama gave its tensors, unless others are given."""
        made = Attention(
            num_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            query=Linear("self_attn.q_proj", qkv_bias),
            key=Linear("self_attn.k_proj", qkv_bias),
            value=Linear("self_attn.v_proj", qkv_bias),
            output=Linear("self_attn.o_proj", output_bias),
            scale=1 / math.sqrt(self.head_dim),
            rope=rope,
        )
        return replace(made, **changes)

    def biased_attention(self, rope: RopeParameters | None, **changes: Any) -> Attention:
        """The same with biases of all four matrices where `attention_bias` says so."""
        bias = self.fields.flag("attention_bias", False)
        return self.attention(rope, bias, bias, **changes)

    def head_norms(self, **changes: Any) -> dict[str, Any]:
        """Norms of queries and keys with the names that Qwen 3 gave them, for `attention`."""
        names = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
        return {place: self.norm(name, **changes) for place, name in names.items()}

    def activation(self, key: str, default: str, choices: tuple[str, ...] = tuple(ACTIVATIONS)) -> Activation:
        """The activation between an MLP's matrices."""
        return ACTIVATIONS[self.fields.choice(key, choices, default=default)]

    def gated_mlp(self, activation: Activation = "silu", bias: bool = False) -> Mlp:
        """An MLP with a gate and Llama's names."""
        return Mlp(
            size=self.fields.size("intermediate_size"),
            activation=activation,
            up=Linear("mlp.up_proj", bias),
            down=Linear("mlp.down_proj", bias),
            gate=Linear("mlp.gate_proj", bias),
        )

    def plain_mlp(self, activation: Activation, up: str, down: str, bias: bool) -> Mlp:
        """An MLP without a gate, of two matrices with these names."""
        return Mlp(self.fields.size("intermediate_size"), activation, up=Linear(up, bias), down=Linear(down, bias))

    def fused_mlp(self, activation: Activation = "silu") -> Mlp:
        """The same with gate and others in one tensor."""
        both = Linear("mlp.gate_up_proj")
        return replace(self.gated_mlp(activation), gate=both, up=both, fused=True)

    def layer(self, mixer: Mixer, mlp: Mlp | Mixture | None, **changes: Any) -> LayerParts:
        """A layer with Llama's two norms, each before its part, unless others are given."""
        made = LayerParts(
            mixer, mlp, before_mixer=self.norm("input_layernorm"), before_mlp=self.norm("post_attention_layernorm")
        )
        return replace(made, **changes)

    def model(self, layers: Sequence[LayerParts], is_tied: bool = False, **changes: Any) -> ModelConfig:
        """The whole; `is_tied` is for a file that does not say whether the embedding is the output head too."""
        made = ModelConfig(
            model_type=self.model_type,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            layers=tuple(layers),
            final_norm=self.norm("model.norm"),
            tie_word_embeddings=self.fields.flag("tie_word_embeddings", is_tied),
        )
        return replace(made, **changes)

    def layer_kinds(self, default: Callable[[int], bool]) -> tuple[bool, ...]:
        """Whether each layer sees a window only; `default` says so of a layer's number, from 0 on."""
        return self.kinds(SLIDING, default)

    def kinds(self, other: str, default: Callable[[int], bool], usual: str = FULL) -> tuple[bool, ...]:
        """Whether `layer_types` calls each layer `other`; all others are `usual`. Where the file has no list, `default`
        says so of a layer's number, from 0 on."""
        kinds = self.fields.values.get("layer_types")
        if kinds is None:
            return tuple(default(layer) for layer in range(self.num_hidden_layers))
        if not isinstance(kinds, list) or len(kinds) != self.num_hidden_layers:
            self.fields.reject(
                "layer_types", f"a list of num_hidden_layers, {self.num_hidden_layers}, names is required"
            )
        if not all(kind in (usual, other) for kind in kinds):
            self.fields.reject("layer_types", f"mxconv supports {usual}, {other}", "Use a model of such a kind.")
        return tuple(kind == other for kind in kinds)

    def window(self, default: int | None) -> int | None:
        """`sliding_window`; an explicit null means none."""
        if self.fields.values.get("sliding_window") is not None:
            return self.fields.size("sliding_window")
        return None if "sliding_window" in self.fields.values else default


def _head_dim(fields: Fields, num_heads: int, default: int | None) -> int:
    hidden_size = fields.size("hidden_size")
    has_key = fields.values.get("head_dim") is not None
    if not has_key and default is None and hidden_size % num_heads:
        fields.reject("hidden_size", f"without head_dim, a multiple of num_attention_heads, {num_heads}, is required")
    head_dim = fields.size("head_dim", default or max(hidden_size // num_heads, 1))
    if head_dim % 2:
        name = "head_dim" if has_key else "hidden_size"
        fields.reject(name, f"RoPE rotates pairs, so an even head_dim is required, not {head_dim}")
    return head_dim
