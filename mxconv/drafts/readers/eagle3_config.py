"""The sizes of an EAGLE-3 draft head, read from the config.json of the `speculators` format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe, describe_values
from mxconv.arch.fields import Fields
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.errors import ModelError
from mxconv.speculation.reader import ReaderSizes

LAYER_TYPES = ("llama", "qwen3")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
MOST_STATES = 64
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Eagle3Config(ReaderConfig):
    """An EAGLE-3 head.

    Args:
        name: of the file, for messages.
        layer: `transformer_layer_config`: its own layers, usually one, and the target's vocabulary.
        draft_vocab_size: tokens that it can propose.
        target_hidden_size: numbers of a state of the target; null is the layer's own hidden size.
        layer_ids: `eagle_aux_hidden_state_layer_ids`: whose states are fused, in the order of the fusion, numbered as
            transformers numbers hidden states; None is the default of the target's depth.
        norm_before_residual: whether the first layer adds to its normed feature.
        norm_before_fc: whether the states are normed together before they are fused.
        fc_norm: whether each is normed by itself.
        norm_output: whether what is fed back has gone through the final norm.

    Source:
        vllm-project/speculators 0.9, Eagle3SpeculatorConfig; arXiv 2503.01840, section 3.
    """

    model_type: ClassVar[str] = "eagle3"

    name: str
    layer: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    layer_ids: tuple[int, ...] | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        return cls(**cls.members(fields))

    @classmethod
    def members(cls, fields: Fields) -> dict[str, Any]:
        """The members by name."""
        fields.choice("speculators_model_type", (cls.model_type,))
        section = fields.section("transformer_layer_config")
        section.choice("model_type", LAYER_TYPES)
        layer = describe(section)
        draft_vocab_size = fields.size("draft_vocab_size")
        if draft_vocab_size > layer.vocab_size:
            fields.reject("draft_vocab_size", f"at most the target's vocabulary, {layer.vocab_size}, is required")
        norm_before_fc, fc_norm = fields.flag("norm_before_fc", False), fields.flag("fc_norm", False)
        if norm_before_fc and fc_norm:
            fields.reject("fc_norm", "with norm_before_fc, false is required: states are normed once")
        return {
            "name": fields.name,
            "layer": layer,
            "draft_vocab_size": draft_vocab_size,
            "target_hidden_size": fields.size("target_hidden_size", layer.hidden_size),
            "layer_ids": read_layers(fields, LAYER_IDS),
            "norm_before_residual": fields.flag("norm_before_residual", False),
            "norm_before_fc": norm_before_fc,
            "fc_norm": fc_norm,
            "norm_output": fields.flag("norm_output", False),
        }

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.layer.vocab_size

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.target_hidden_size, self.vocab_size)

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The states that it reads of a target of `num_layers`, in the order of the fusion.

        Raises:
            ModelError: the target does not have them.
        """
        return checked_layers(self.name, LAYER_IDS, self.layer_ids, num_layers)


def checked_layers(name: str, key: str, layers: tuple[int, ...] | None, num_layers: int) -> tuple[int, ...]:
    """The states that a head reads of a target of `num_layers`: those of a key of its config.json, or the default.

    Raises:
        ModelError: the target does not have them.
    """
    how = "by default " if layers is None else ""
    layers = default_layers(num_layers) if layers is None else layers
    if not _are_there(layers, num_layers):
        raise ModelError(
            f"{name}: reads {how}the states of layers {', '.join(map(str, layers))} ({key}); different ones from 0 to "
            f"{num_layers}, the target's layers, are required. Use a head that was trained for this target."
        )
    return layers


def default_layers(num_layers: int) -> tuple[int, ...]:
    """The default layers, which a target of few layers does not have."""
    return 2, num_layers // 2, num_layers - 3


def layers_for(num_layers: int) -> tuple[int, ...]:
    """The states that a new head reads: the default where a target has it.

    Else an early, a middle and a late one, 1, n // 2 and n - 1, and of one or two layers what feeds each of them.
    """
    wanted = default_layers(num_layers), (1, num_layers // 2, num_layers - 1), tuple(range(num_layers))
    return next(layers for layers in wanted if _are_there(layers, num_layers))


def config_for(
    target: Mapping[str, object], layer_ids: Sequence[int], draft_vocab_size: int, block: int
) -> dict[str, object]:
    """The config.json of a head of one Llama layer with a target's own sizes.

    Args:
        target: the content of its config.json.
        layer_ids: whose states are fused, as `Eagle3Config` has it.
        draft_vocab_size: tokens that the head knows.
        block: tokens of a proposal that it was trained for, which programs that serve it go by.

    Raises:
        ModelError: the target is of an architecture that is not supported.
    """
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": block}],
            "verifier": {"name_or_path": None, "architectures": target.get("architectures") or []},
        },
        "transformer_layer_config": _layer_values(target),
        "draft_vocab_size": draft_vocab_size,
        "target_hidden_size": None,
        LAYER_IDS: list(layer_ids),
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "tie_word_embeddings": False,
    }


def _layer_values(target: Mapping[str, object]) -> dict[str, object]:
    own = describe_values(dict(target))
    return {
        "model_type": "llama",
        "vocab_size": own.vocab_size,
        "hidden_size": own.hidden_size,
        "intermediate_size": own.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": own.num_attention_heads,
        "num_key_value_heads": own.num_key_value_heads,
        "head_dim": own.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": own.max_position_embeddings,
        "rms_norm_eps": own.rms_norm_eps,
        "tie_word_embeddings": False,
        **{key: target[key] for key in ROPE_KEYS if target.get(key) is not None},
    }


def _are_there(layers: Sequence[int], num_layers: int) -> bool:
    """Whether a target has these states, and they differ."""
    return min(layers) >= 0 and max(layers) <= num_layers and len(set(layers)) == len(layers)


def read_layers(fields: Fields, key: str) -> tuple[int, ...] | None:
    """The numbers of layers that a key lists; None where it is null or absent."""
    layers = fields.values.get(key)
    if layers is None:
        return None
    if not isinstance(layers, list) or not 1 <= len(layers) <= MOST_STATES or not all(type(i) is int for i in layers):
        fields.reject(key, f"a list of 1 to {MOST_STATES} layer numbers, or null, is required")
    return tuple(layers)
