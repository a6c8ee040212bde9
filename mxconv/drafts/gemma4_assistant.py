"""An assistant of a Gemma 4, as transformers saves it: `gemma4-assistant:PATH_OR_ID`.

A few layers that have no keys and values of their own: they read those of the target's last two kinds of layers. What
goes in is the target's embedding of a token beside a state: the target's last one, and then the assistant's own.

Source:
    Gemma4AssistantForCausalLM and SinglePositionMultiTokenCandidateGenerator of transformers 5.24.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.families.gemma4 import NUM_SHARED, SIZE, gemma4
from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32, I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.layer import Layer
from mxconv.engine.matrices import Matrices
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.states import Reads
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.reader import Reader, ReaderSizes

ORDERING = "masked_embedding.token_ordering"


@dataclass(frozen=True)
class AssistantConfig(ReaderConfig):
    """A Gemma 4 assistant.

    Args:
        name: of the file, for messages.
        layer: `text_config`, its own layers.
        target_size: `backbone_hidden_size`, numbers of a state of the target.
        num_clusters: of tokens; 0 where the output head is read whole.
        num_read: how many of them a token's logits are computed of.
    """

    name: str
    layer: ModelConfig
    target_size: int
    num_clusters: int
    num_read: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.choice("model_type", ("gemma4_assistant",))
        section = fields.section("text_config")
        section.choice("model_type", ("gemma4_text",))
        if section.values.get(SIZE, 256) not in (0, None):
            section.reject(SIZE, "0 is required")
        if section.flag("enable_moe_block", False):
            section.reject("enable_moe_block", "false is required")
        layer = gemma4(Fields({**section.values, NUM_SHARED: 0}, section.name))
        is_clustered = fields.flag("use_ordered_embeddings", False)
        num_clusters = fields.size("num_centroids", 2048) if is_clustered else 0
        num_read = fields.size("centroid_intermediate_top_k", 32)
        if is_clustered and (layer.vocab_size % num_clusters or num_read > num_clusters):
            fields.reject("num_centroids", f"a divisor of {layer.vocab_size}, and as many as are read, are required")
        return cls(fields.name, layer, fields.size("backbone_hidden_size", 1536), num_clusters, num_read)

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.target_size, self.layer.vocab_size)

    def below(self, target: ModelConfig) -> ModelConfig:
        """Its layers, each of which reads the keys and values of the target's last layer of its kind that has some.

        Raises:
            ModelError: the target has no such layer, or one of other heads.
        """
        layers = []
        for parts in self.layer.layers:
            own = parts.mixer
            assert isinstance(own, Attention), "a Gemma 4's layers attend"
            found = [
                (index, other.mixer)
                for index, other in enumerate(target.layers)
                if isinstance(other.mixer, Attention)
                and other.mixer.source is None
                and (other.mixer.window is None) == (own.window is None)
            ]
            heads = (own.num_key_value_heads, own.head_dim)
            if not found or (found[-1][1].num_key_value_heads, found[-1][1].head_dim) != heads:
                kind = "without" if own.window is None else "with"
                raise ModelError(
                    f"{self.name}: layers {kind} a window read {heads[0]} key-value heads of size {heads[1]}; those of "
                    "the target's last such layer are required. Use the assistant of this target."
                )
            layers.append(replace(parts, mixer=replace(own, source=found[-1][0])))
        return replace(self.layer, layers=tuple(layers))


class Assistant(Reader):
    """The layers, between two projections from and to states of the target.

    Args:
        config: of the assistant.
        weights: by the names that transformers gives them.
        ordering: (vocab_size,) the tokens, cluster by cluster; None where the output head is read whole.
        target: whose embedding and caches are read.
        name: for messages.

    Raises:
        ModelError: a tensor is missing or misshapen, or the target has other heads.
    """

    def __init__(
        self, config: AssistantConfig, weights: ModelWeights, ordering: I64 | None, target: Decoder, name: str
    ) -> None:
        super().__init__(config.sizes, Reads(normed_last=True), name)
        self.config, self._target = config, target
        layer, own = config.below(target.config), CheckedWeights(weights, name)
        self.before = own.matrix("pre_projection.weight", layer.hidden_size, 2 * config.target_size)
        self.after = own.matrix("post_projection.weight", config.target_size, layer.hidden_size)
        self.layers = [Layer(own, layer, index) for index in range(layer.num_hidden_layers)]
        self.norm = own.norm(layer.final_norm, layer.hidden_size)
        self.head = own.matrix(layer.embedding, layer.vocab_size, layer.hidden_size)
        self.clusters: Matrix | None = None
        if config.num_clusters:
            assert ordering is not None, "read with the weights"
            self.clusters = own.matrix("masked_embedding.centroids.weight", config.num_clusters, layer.hidden_size)
            self._tokens = ordering.reshape(config.num_clusters, -1)

    def step(self, states: F32, tokens: Sequence[int], cache: KVCache) -> tuple[F32, F32]:
        """The states after some tokens, (n, hidden size of the target), and their logits, (n, vocab_size).

        Args:
            states: of the tokens before, like those that are returned.
            tokens: n ids.
            cache: of the target, without the text's last token. The assistant places all tokens there.
        """
        positions = Positions([cache.length + cache.num_left_out] * len(tokens))
        embedded, _ = self._target.first_inputs(np.array(tokens, np.intp), positions)
        x = self.before.multiply(np.concatenate([embedded, states], axis=1))
        rows = SequenceRows(tokens, cache, sees="cache")
        for layer in self.layers:
            x = layer(x, [rows], positions)
        normed = self.norm(x)
        return self.after.multiply(normed), self._logits(normed)

    def _logits(self, normed: F32) -> F32:
        """All of them, or those of the tokens of the likeliest clusters: minus infinity for others."""
        if self.clusters is None:
            return self.head.multiply(normed)
        chosen = np.argsort(-self.clusters.multiply(normed), axis=1, kind="stable")[:, : self.config.num_read]
        logits = np.full((len(normed), self.config.layer.vocab_size), -np.inf, np.float32)
        for row, state, places in zip(logits, normed, chosen, strict=True):
            tokens = self._tokens[places].ravel()
            row[tokens] = self.head.rows(tokens) @ state
        return logits


class AssistantDraft(PassDraft):
    """Proposes by a pass a token, or a depth of a tree, over the target's own cache."""

    def __init__(self, assistant: Assistant, inputs: DraftInputs) -> None:
        super().__init__(inputs)
        inputs.session.states.want(assistant.reads)
        self._assistant = assistant
        self._states: F32 = np.empty((0, 0), np.float32)  # after the context; then, a row each

    def most_tokens(self, context: Sequence[int]) -> int:
        is_there = len(context) > 1 and max(context) < self._assistant.sizes.vocab_size
        return MOST_ROWS if is_there and self.inputs.session.holds(context) else 0

    def begin(self, context: Sequence[int]) -> F32:
        length = len(context) - 1
        (last,) = self.inputs.session.states.read(self._assistant.reads, length - 1, length)
        self._states, logits = self._evaluated(last, context[-1:])
        return logits

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._evaluated(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _evaluated(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        with self.statistics.forward(), np.errstate(over="ignore", invalid="ignore"):
            made, logits = self._assistant.step(states, tokens, self.inputs.session.cache)
        return made, logits[:, : self.inputs.vocab_size]


class AssistantKind(ReaderKind):
    """`gemma4-assistant:PATH_OR_ID`, in the layout of transformers."""

    name = "gemma4-assistant"
    config = AssistantConfig
    other_dtypes = ("I64",)  # of the order of tokens

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Assistant:
        assert target is not None, "it reads the target's embedding"
        config = AssistantConfig.from_file(folder / "config.json")
        weights, tensors = reader_weights(folder, record, make, stack)
        ordering = _ordering(tensors.get(ORDERING), config, record.name) if config.num_clusters else None
        return Assistant(config, weights, ordering, target, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """Layers over the whole context, and the head."""
        assert place is not None, "it has a folder"
        sizes = ModelSizes.of(AssistantConfig.from_file(place / "config.json").layer)
        return PassCost.of_folder(place, record, sizes, None)

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> AssistantDraft:
        return AssistantDraft(reader, inputs)


def _ordering(tensor: SourceTensor | None, config: AssistantConfig, name: str) -> I64:
    """Every token once. Raises ModelError where it is anything else."""
    size = config.layer.vocab_size
    if tensor is None or tensor.dtype != "I64" or tensor.shape != (size,):
        found = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
        raise ModelError(
            f"{name}: tensor {ORDERING} is {found}; I64 [{size}] is required. Take the assistant's own file."
        )
    tokens: I64 = tensor.array().astype(np.int64)
    if not np.array_equal(np.sort(tokens), np.arange(size)):
        raise ModelError(
            f"{name}: tensor {ORDERING} has not every token once; that is required. Take the assistant's own."
        )
    return tokens


GEMMA4_ASSISTANT = AssistantKind()
