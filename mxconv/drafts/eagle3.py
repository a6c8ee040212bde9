"""An EAGLE-3 draft head, in the format of the `speculators` package: `eagle3:PATH_OR_ID`.

A decoder layer over pairs: a token's embedding and a *feature* of the token before it. A feature is made of the
target's states of a few layers, or, of a token that the head drafted, is the head's own output there.

Source:
    Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
    (arXiv 2503.01840), section 3. Norms, residuals and positions: Eagle3DraftModel of vllm-project/speculators 0.9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Self

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe, describe_values
from mxconv.arch.fields import Fields
from mxconv.arrays import F32, I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.feature_draft import FeatureDraft, FeatureReader
from mxconv.drafts.kind import Run
from mxconv.drafts.reader_kind import ReaderConfig, ReaderKind, reader_weights
from mxconv.engine.layer import EMBEDDING, PairedLayers, PairRules
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import Reads, SequenceRows
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.rowwise import rms_norm
from mxconv.package.level_record import LevelRecord
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
        fields.choice("speculators_model_type", ("eagle3",))
        section = fields.section("transformer_layer_config")
        section.choice("model_type", LAYER_TYPES)
        layer = describe(section)
        draft_vocab_size = fields.size("draft_vocab_size")
        if draft_vocab_size > layer.vocab_size:
            fields.reject("draft_vocab_size", f"at most the target's vocabulary, {layer.vocab_size}, is required")
        norm_before_fc, fc_norm = fields.flag("norm_before_fc", False), fields.flag("fc_norm", False)
        if norm_before_fc and fc_norm:
            fields.reject("fc_norm", "with norm_before_fc, false is required: states are normed once")
        return cls(
            name=fields.name,
            layer=layer,
            draft_vocab_size=draft_vocab_size,
            target_hidden_size=fields.size("target_hidden_size", layer.hidden_size),
            layer_ids=read_layers(fields, LAYER_IDS),
            norm_before_residual=fields.flag("norm_before_residual", False),
            norm_before_fc=norm_before_fc,
            fc_norm=fc_norm,
            norm_output=fields.flag("norm_output", False),
        )

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


def target_tokens(tensors: Mapping[str, SourceTensor], draft_size: int, target_size: int, name: str) -> I64:
    """(draft_size,) int64: the target's id of each token of the head.

    Args:
        tensors: of the head. d2t, (draft_size,), has the distance from an id of the head to that of the target; t2d,
            (target_size,), says which tokens of the target the head knows. Without either both ids are the same.
        draft_size: tokens of the head.
        target_size: of the target.
        name: of the head, for messages.

    Raises:
        ModelError: they are missing or of another kind, lead outside the target's vocabulary or to one token twice,
            or contradict each other.
    """
    ours = np.arange(draft_size, dtype=np.int64)
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None:
        if draft_size != target_size:
            _refuse(name, "tensor d2t is missing", f"with {draft_size} of {target_size} tokens it is")
        return ours
    if d2t.dtype not in ("I64", "I32") or d2t.shape != (draft_size,):
        _refuse(name, f"tensor d2t is {d2t.dtype} {list(d2t.shape)}", f"I64 [{draft_size}] is")
    with np.errstate(over="ignore"):
        tokens: I64 = ours + d2t.array().astype(np.int64)
    outside = tokens[(tokens < 0) | (tokens >= target_size)]
    if len(outside):
        _refuse(name, f"tensor d2t leads to token {outside[0]}", f"0 to {target_size - 1} is")
    if len(np.unique(tokens)) < draft_size:
        _refuse(name, "tensor d2t leads to one token twice", "a token each is")
    if t2d is not None:
        if t2d.dtype != "BOOL" or t2d.shape != (target_size,):
            _refuse(name, f"tensor t2d is {t2d.dtype} {list(t2d.shape)}", f"BOOL [{target_size}] is")
        if not np.array_equal(np.flatnonzero(t2d.array()), np.sort(tokens)):
            _refuse(name, "tensor t2d marks other tokens than d2t leads to", "the same are")
    return tokens


def _refuse(name: str, found: str, required: str) -> NoReturn:
    raise ModelError(f"{name}: {found}; {required} required. Take the file that belongs to the head.")


def among_all(known: F32, tokens: I64, vocab_size: int) -> F32:
    """The logits of all tokens, (n, vocab_size), from those of some, (n, num_tokens): minus infinity for others."""
    logits = np.full((len(known), vocab_size), -np.inf, np.float32)
    logits[:, tokens] = known
    return logits


class Eagle3(FeatureReader):
    """A head that reads the states of a few layers of the target.

    Args:
        config: of the `speculators` format, as are the names of `weights`.
        tokens: (draft_vocab_size,) the target's id of each token of the head.
        layers: whose states are fused, in that order.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(
        self, config: Eagle3Config, weights: ModelWeights, tokens: I64, layers: Sequence[int], name: str
    ) -> None:
        sizes = ReaderSizes(config.target_hidden_size, config.vocab_size, max(layers))
        super().__init__(sizes, Reads(tuple(sorted(layers))), name)
        self.config = config
        self.layers = config.layer
        self.tokens = tokens
        self._order = [self.reads.layers.index(layer) for layer in layers]
        own, taken = CheckedWeights(weights, name), len(layers) * config.target_hidden_size
        self.fusion = own.matrix("fc.weight", config.layer.hidden_size, taken)
        self._joint_norm = own.vector("input_norm.weight", taken) if config.norm_before_fc else None
        self._state_norms = [
            own.vector(f"fc_norm.{place}.weight", config.target_hidden_size)
            for place in range(len(layers) if config.fc_norm else 0)
        ]
        rules = PairRules(config.norm_before_residual, config.norm_output)
        self.paired = PairedLayers(own, config.layer, tokens, rules)
        self.embedding = self.paired.embedding

    def knows_any(self, vocab_size: int) -> bool:
        return bool((self.tokens < vocab_size).any())

    def fuse(self, states: F32) -> F32:
        parts, eps = [states[place] for place in self._order], self.config.layer.rms_norm_eps
        if self._state_norms:
            parts = [rms_norm(part, norm, eps) for part, norm in zip(parts, self._state_norms, strict=True)]
        joined = np.concatenate(parts, axis=1)
        if self._joint_norm is not None:
            joined = rms_norm(joined, self._joint_norm, eps)
        return self.fusion.multiply(joined)

    def made(self, embedded: F32, features: F32, rows: SequenceRows, positions: Positions) -> F32:
        return self.paired.made(embedded, features, rows, positions)

    def logits(self, features: F32) -> F32:
        return among_all(self.paired.logits(features), self.tokens, self.config.vocab_size)


class Eagle3Kind(ReaderKind):
    """A head that may know only some of the target's tokens."""

    name = "eagle3"
    config = Eagle3Config
    draft_type = FeatureDraft
    other_dtypes = ("I64", "I32", "BOOL")  # of the tables of its vocabulary

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> Eagle3:
        config = Eagle3Config.from_file(folder / "config.json")
        layers = config.layers_of(run.target.config.num_hidden_layers)
        weights, tensors = reader_weights(folder, record, run)
        weights = replace(weights, matrices={EMBEDDING: run.target.embedding, **weights.matrices})
        tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
        head = Eagle3(config, weights, tokens, layers, record.name)
        head.grower = run.matrices.pair_grower(head.paired)
        return head


EAGLE3 = Eagle3Kind()
