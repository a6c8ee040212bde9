"""An EAGLE-3 draft head, in the format of the `speculators` package: `eagle3:PATH_OR_ID`.

A decoder layer over pairs: a token's embedding and a *feature* of the token before it. A feature is made of the
target's states of a few layers, or, of a token that the head drafted, is the head's own output there.

Source:
    Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
    (arXiv 2503.01840), section 3. Norms, residuals and positions: Eagle3DraftModel of vllm-project/speculators 0.9.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.feature_draft import FeatureDraft, FeatureReader
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.paired_layers import EMBEDDING, PairedLayers, PairRules
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.rowwise import rms_norm
from mxconv.package.level_record import LevelRecord
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.reader import ReaderSizes


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
    config: type[Eagle3Config] = Eagle3Config
    other_dtypes = ("I64", "I32", "BOOL")  # of the tables of its vocabulary

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Eagle3:
        assert target is not None, "a head without an embedding takes the target's"
        config = self.config.from_file(folder / "config.json")
        layers = config.layers_of(target.config.num_hidden_layers)
        weights, tensors = reader_weights(folder, record, make, stack)
        weights = replace(weights, matrices={EMBEDDING: target.embedding, **weights.matrices})
        tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
        head = Eagle3(config, weights, tokens, layers, record.name)
        head.grower = make.pair_grower(head.paired)
        return head

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> FeatureDraft:
        return FeatureDraft(reader, inputs)


EAGLE3 = Eagle3Kind()
