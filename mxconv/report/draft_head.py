"""Draft heads of other projects, told apart by their config.json: what they are and whom they draft for.

A head in the `speculators` format names its algorithm in `speculators_model_type`, its target ("verifier") in
`speculators_config`, and the sizes of its layers in `transformer_layer_config`. An EAGLE-3 head may know only a part
of the target's tokens; two tensors then say which:

    d2t   (draft_vocab_size,)    target token id = draft token id + d2t[draft token id]
    t2d   (target vocab_size,)   whether the head knows this token of the target

Nothing of such a head is run here; `mxconv.drafts.eagle3` runs those of EAGLE-3.

Source:
    Eagle3SpeculatorConfig and Eagle3DraftModel of vllm-project/speculators 0.4; vLLM, models/llama_eagle3.py
    (`compute_logits`); arXiv 2503.01840.
"""

from dataclasses import asdict, dataclass
from typing import Any

from mxconv.arch.fields import Fields
from mxconv.checkpoint.source import Checkpoint


@dataclass(frozen=True)
class DraftHead:
    """A head as its configuration describes it; None where it does not say."""

    format: str  # "speculators"
    kind: str  # the algorithm: "eagle3", "eagle", "mlp_speculator", ...
    format_version: str | None
    verifier: str | None  # the model that it drafts for, as its author named it
    verifier_architectures: list[str]
    num_draft_tokens: int | None  # a round, by its default proposal method
    num_hidden_layers: int | None
    hidden_size: int | None
    target_layers: list[int] | None  # whose hidden states it reads; None for the default of its kind
    draft_vocab_size: int | None
    target_vocab_size: int | None
    vocab_mapping: str  # which of the target's tokens it can propose, and how that is known

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """One line."""
        name = "EAGLE-3" if self.kind == "eagle3" else self.kind
        layers = f"{self.num_hidden_layers or '?'} layer{'' if self.num_hidden_layers == 1 else 's'}"
        tokens = f", {self.num_draft_tokens} tokens a round" if self.num_draft_tokens else ""
        return (
            f"draft head, {name} ({self.format} format{f' {self.format_version}' if self.format_version else ''}), for "
            f"{self.verifier or 'an unnamed model'}: {layers} of width {self.hidden_size or '?'}{tokens}; "
            f"vocabulary: {self.vocab_mapping}. {self._remark()}"
        )

    def _remark(self) -> str:
        if self.kind == "eagle3":
            return "Run it below its model with --draft eagle3:PATH_OR_ID."
        return "mxconv lists such heads and does not run them."


def find_draft_head(checkpoint: Checkpoint) -> DraftHead | None:
    """The head that a checkpoint is, or None for a model.

    Raises:
        ModelError: its configuration holds a value of another kind than the format says.
    """
    config = checkpoint.config or {}
    if "speculators_model_type" not in config and "speculators_config" not in config:
        return None
    fields = Fields(config, str(checkpoint.root / "config.json"))
    method = fields.section("speculators_config")
    layer = fields.section("transformer_layer_config")
    verifier = method.section("verifier")
    draft_vocab_size, target_vocab_size = _size(fields, "draft_vocab_size"), _size(layer, "vocab_size")
    return DraftHead(
        format="speculators",
        kind=_text(fields, "speculators_model_type") or _text(method, "algorithm") or "unnamed",
        format_version=_text(fields, "speculators_version"),
        verifier=_text(verifier, "name_or_path"),
        verifier_architectures=_texts(verifier, "architectures"),
        num_draft_tokens=_num_draft_tokens(method),
        num_hidden_layers=_size(layer, "num_hidden_layers"),
        hidden_size=_size(layer, "hidden_size"),
        target_layers=_target_layers(fields),
        draft_vocab_size=draft_vocab_size,
        target_vocab_size=target_vocab_size,
        vocab_mapping=_mapping(checkpoint, draft_vocab_size, target_vocab_size),
    )


def _num_draft_tokens(method: Fields) -> int | None:
    """Draft tokens of the default proposal method, or else of the first."""
    methods = method.values.get("proposal_methods") or []
    if not isinstance(methods, list) or not all(isinstance(entry, dict) for entry in methods):
        method.reject("proposal_methods", "a list of objects is required")
    default = method.values.get("default_proposal_method")
    chosen = [entry for entry in methods if entry.get("proposal_type") == default] or methods
    return _size(Fields(chosen[0], f"{method.name}: proposal_methods"), "speculative_tokens") if chosen else None


def _target_layers(fields: Fields) -> list[int] | None:
    key = "eagle_aux_hidden_state_layer_ids"
    layers = fields.values.get(key)
    if layers is None:
        return None
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        fields.reject(key, "a list of layer numbers or null is required")
    return layers


def _mapping(checkpoint: Checkpoint, draft_size: int | None, target_size: int | None) -> str:
    """How the head's tokens are those of its target; whoever runs it checks the mapping."""
    names = [name for name in ("d2t", "t2d") if name in checkpoint.tensors]
    if not names:
        whole = draft_size in (None, target_size)
        return "the target's, no mapping" if whole else "reduced, but its mapping is missing"
    size = f"{draft_size:,}" if draft_size else "some"
    of = f"{target_size:,} " if target_size else ""
    return f"{size} of the target's {of}tokens, by {' and '.join(names)}"


def _size(fields: Fields, key: str) -> int | None:
    return None if fields.values.get(key) is None else fields.size(key)


def _text(fields: Fields, key: str) -> str | None:
    value = fields.values.get(key)
    if value is not None and not isinstance(value, str):
        fields.reject(key, "a text or null is required")
    return value


def _texts(fields: Fields, key: str) -> list[str]:
    values = fields.values.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        fields.reject(key, "a list of texts is required")
    return values
