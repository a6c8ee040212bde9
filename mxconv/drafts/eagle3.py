"""An EAGLE-3 draft head, in the format of the `speculators` package: `eagle3:PATH_OR_ID`.

A decoder layer over the target's fused hidden states and the tokens that followed them. Of every token but the last a
*feature* and the embedding of the next token go in as a pair. Of a text that the target has evaluated a feature is
made of its states of a few layers; of a token that the head drafted it is what the head itself gave there. So the head
keeps keys and values of the text as any decoder does.

Source:
    Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
    (arXiv 2503.01840), section 3. Norms, residuals and positions: Eagle3DraftModel of vllm-project/speculators 0.9.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.kind import DraftSpec, LoadedLevel, OpenedDraft, OpenTarget
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.feature_draft import FeatureDraft
from mxconv.drafts.readers.reader import Reader, ReaderSizes
from mxconv.drafts.readers.reading_draft import Listener
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder, among_all
from mxconv.engine.forest import SequenceRows
from mxconv.engine.layer import Layer
from mxconv.engine.matrices import Matrices
from mxconv.engine.rope import Positions
from mxconv.engine.states import Reads
from mxconv.engine.tree import Tree
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm
from mxconv.package.level_record import LevelRecord


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


EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class FirstLayer:
    """A layer whose attention takes in an embedding and a feature, (num_tokens, 2 * hidden_size), each normed."""

    layer: Layer
    feature_norm: F32
    adds_to_normed: bool

    def __call__(self, embeddings: F32, features: F32, sequences: Sequence[SequenceRows], positions: Positions) -> F32:
        own = self.layer.before_mixer
        assert own is not None, "its layers norm what attention takes in"
        normed = rms_norm(features, self.feature_norm, own.parts.eps)
        taken = np.concatenate([own(embeddings), normed], axis=1)
        kept = normed if self.adds_to_normed else features
        return self.layer.with_mlp(kept + self.layer.attention(taken, sequences, positions))


class Eagle3:
    """A draft that reads the states of a few layers of the target.

    Args:
        config: sizes.
        weights: tensors by the names of the `speculators` format.
        tokens: (draft_vocab_size,) the target's id of each token of the head.
        layers: whose states are fused, in that order.
        name: what messages call it.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    num_passes = 1

    def __init__(
        self, config: Eagle3Config, weights: ModelWeights, tokens: I64, layers: Sequence[int], name: str
    ) -> None:
        self.config = config
        self.name = name
        self.tokens = tokens
        self.reads = Reads(tuple(sorted(layers)))
        self._order = [self.reads.layers.index(layer) for layer in layers]
        own, taken = CheckedWeights(weights, name), len(layers) * config.target_hidden_size
        size = config.layer.hidden_size
        self.embedding = own.matrix(EMBEDDING, config.vocab_size, size)
        self.fusion = own.matrix("fc.weight", size, taken)
        self._joint_norm = own.vector("input_norm.weight", taken) if config.norm_before_fc else None
        self._state_norms = [
            own.vector(f"fc_norm.{place}.weight", config.target_hidden_size)
            for place in range(len(layers) if config.fc_norm else 0)
        ]
        self.first = FirstLayer(
            Layer(own, config.layer, 0, "layers.0.", 2 * size),
            own.vector("layers.0.hidden_norm.weight", size),
            config.norm_before_residual,
        )
        others = range(1, config.layer.num_hidden_layers)
        self.others = [Layer(own, config.layer, i, f"layers.{i}.") for i in others]
        self.norm = own.vector("norm.weight", size)
        self.head = own.matrix("lm_head.weight", config.draft_vocab_size, size)

    @property
    def hidden_size(self) -> int:
        """The target's hidden size."""
        return self.config.target_hidden_size

    @property
    def least_layers(self) -> int:
        """The number of layers that the target must have."""
        return max(self.reads.layers)

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.config.vocab_size

    def new_cache(self) -> KVCache:
        return KVCache(self.config.layer)

    def knows_any(self, vocab_size: int) -> bool:
        return bool((self.tokens < vocab_size).any())

    def fuse(self, states: F32) -> F32:
        eps, parts = self.config.layer.rms_norm_eps, [states[place] for place in self._order]
        with np.errstate(over="ignore", invalid="ignore"):
            if self._state_norms:
                parts = [rms_norm(part, norm, eps) for part, norm in zip(parts, self._state_norms, strict=True)]
            joined = np.concatenate(parts, axis=1)
            if self._joint_norm is not None:
                joined = rms_norm(joined, self._joint_norm, eps)
            return self.fusion.multiply(joined)

    def advance(self, features: F32, tokens: Sequence[int], cache: KVCache, tree: Tree | None = None) -> F32:
        """As `FeatureReader.advance`. A pair is at its token's position, the first one at 1."""
        rows = SequenceRows(tokens, cache, tree)
        positions = Positions([place + 1 for place in rows.positions])
        cache.reserve(len(tokens))
        with np.errstate(over="ignore", invalid="ignore"):
            x = self.first(self.embedding.rows(np.array(tokens, np.intp)), features, [rows], positions)
            for layer in self.others:
                x = layer(x, [rows], positions)
            if self.config.norm_output:
                x = rms_norm(x, self.norm, self.config.layer.rms_norm_eps)
        cache.advance(len(tokens))
        return x

    def logits(self, features: F32) -> F32:
        """(n, vocab_size) float32: of the target's tokens, minus infinity for those that the head does not know."""
        with np.errstate(over="ignore", invalid="ignore"):
            normed = features
            if not self.config.norm_output:
                normed = rms_norm(features, self.norm, self.config.layer.rms_norm_eps)
            known = self.head.multiply(normed)
        return among_all(known, self.tokens, self.vocab_size)


def with_embedding(weights: ModelWeights, embedding: Matrix) -> ModelWeights:
    """The weights of a head that leaves the target's embedding where it is: the target's own."""
    matrices: Mapping[str, Matrix] = {EMBEDDING: embedding, **weights.matrices}
    return ModelWeights(matrices, weights.vectors)


class Eagle3Kind(ReaderKind):
    """A head that may know only some of the target's tokens."""

    name = "eagle3"
    other_dtypes = ("I64", "I32", "BOOL")  # of the tables of its vocabulary

    def sizes(self, path: Path) -> ReaderSizes:
        return Eagle3Config.from_file(path)

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        draft = super().open(spec, target)
        if target.config is not None and draft.root is not None:
            Eagle3Config.from_file(draft.root / "config.json").layers_of(target.config.num_hidden_layers)
        return draft

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Eagle3:
        assert target is not None, "its head takes the target's embedding"
        config = Eagle3Config.from_file(folder / "config.json")
        layers = config.layers_of(target.config.num_hidden_layers)
        weights, tensors = reader_weights(folder, record, make, stack)
        tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
        return Eagle3(config, with_embedding(weights, target.embedding), tokens, layers, record.name)

    def draft(self, loaded: LoadedLevel, listener: Listener) -> FeatureDraft:
        assert isinstance(loaded.reader, Eagle3)
        return FeatureDraft(loaded.reader, listener)

    def new_cache(self, reader: Reader) -> KVCache:
        assert isinstance(reader, Eagle3)
        return reader.new_cache()


EAGLE3 = Eagle3Kind()
