"""An assistant of a Gemma 4, as transformers saves it: `gemma4-assistant:PATH_OR_ID`.

A few layers that have no keys and values of their own: they read those of the target's last two kinds of layers. What
goes in is the target's embedding of a token beside a state: the target's last one, and then the assistant's own.

Source:
    Gemma4AssistantForCausalLM and SinglePositionMultiTokenCandidateGenerator of transformers 5.24.
"""

from collections.abc import Sequence
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
from mxconv.drafts.kind import Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderConfig, ReaderKind, reader_weights
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.layer import Layer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import Reads, SequenceRows
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.model_draft import StagedDraft
from mxconv.speculation.reader import MOST_STAGES, ReaderSizes, StagedReader

ORDERING = "masked_embedding.token_ordering"


@dataclass(frozen=True)
class AssistantConfig(ReaderConfig):
    """A Gemma 4 assistant.

    Args:
        name: of the file, for messages.
        own: `text_config`, its layers.
        target_size: `backbone_hidden_size`, numbers of a state of the target.
        num_clusters: of tokens; 0 where the output head is read whole.
        num_read: how many of them a token's logits are computed of.
    """

    name: str
    own: ModelConfig
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
        own = gemma4(Fields({**section.values, NUM_SHARED: 0}, section.name))
        is_clustered = fields.flag("use_ordered_embeddings", False)
        num_clusters = fields.size("num_centroids", 2048) if is_clustered else 0
        num_read = fields.size("centroid_intermediate_top_k", 32)
        if is_clustered and (own.vocab_size % num_clusters or num_read > num_clusters):
            fields.reject("num_centroids", f"a divisor of {own.vocab_size}, and as many as are read, are required")
        return cls(fields.name, own, fields.size("backbone_hidden_size", 1536), num_clusters, num_read)

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.target_size, self.own.vocab_size)

    def below(self, target: ModelConfig) -> ModelConfig:
        """Its layers, each of which reads the keys and values of the target's last layer of its kind that has some.

        Raises:
            ModelError: the target has no such layer, or one of other heads.
        """
        mixers = [(n, each.mixer) for n, each in enumerate(target.layers) if isinstance(each.mixer, Attention)]
        last = {mixer.window is None: (n, mixer) for n, mixer in mixers if mixer.source is None}
        layers = []
        for parts in self.own.layers:
            own = parts.mixer
            assert isinstance(own, Attention), "a Gemma 4's layers attend"
            number, theirs = last.get(own.window is None, (0, None))
            heads = own.num_key_value_heads, own.head_dim
            if theirs is None or (theirs.num_key_value_heads, theirs.head_dim) != heads:
                kind = "without" if own.window is None else "with"
                raise ModelError(
                    f"{self.name}: layers {kind} a window read {heads[0]} key-value heads of size {heads[1]}; those of "
                    "the target's last such layer are required. Use the assistant of this target."
                )
            layers.append(replace(parts, mixer=replace(own, source=number)))
        return replace(self.own, layers=tuple(layers))


class Assistant(StagedReader):
    """The layers: each stage is all of them, over the target's own cache, after the states of the one before.

    Args:
        config: of the assistant.
        weights: by the names that transformers gives them.
        ordering: (vocab_size,) the tokens, cluster by cluster; None where the output head is read whole.
        target: whose embedding and caches are read.
        name: for messages.

    Raises:
        ModelError: a tensor is missing or misshapen, or the target has other heads.
    """

    num_stages = MOST_STAGES

    def __init__(
        self, config: AssistantConfig, weights: ModelWeights, ordering: I64 | None, target: Decoder, name: str
    ) -> None:
        super().__init__(config.sizes, Reads(normed_last=True), name)
        self._num_read, self._target = config.num_read, target
        layers, own = config.below(target.config), CheckedWeights(weights, name)
        size = layers.hidden_size
        self.before = own.matrix("pre_projection.weight", size, 2 * config.target_size)
        self.after = own.matrix("post_projection.weight", config.target_size, size)
        self.layers = [Layer(own, layers, index) for index in range(layers.num_hidden_layers)]
        self.norm = own.norm(layers.final_norm, size)
        self.head = own.matrix(layers.embedding, layers.vocab_size, size)
        self._tokens = None if ordering is None else ordering.reshape(config.num_clusters, -1)
        if ordering is not None:
            self.clusters = own.matrix("masked_embedding.centroids.weight", config.num_clusters, size)

    def advance(self, index: int, states: F32, tokens: Sequence[int], cache: KVCache | None = None) -> F32:
        """The states after some tokens: (n, its own hidden size), of which `after` makes such as the target's.

        Args:
            index: 0 after states of the target, others after those that are returned.
            states: of the tokens before, a row each.
            tokens: n ids.
            cache: of the target, without the text's last token. All tokens are placed after it.
        """
        assert cache is not None, "it reads the target's"
        positions = Positions([cache.length + cache.num_left_out] * len(tokens))
        embedded, _ = self._target.first_inputs(np.array(tokens, np.intp), positions)
        above = self.after.multiply(states) if index else states
        x = self.before.multiply(np.concatenate([embedded, above], axis=1))
        rows = SequenceRows(tokens, cache, sees="cache")
        for layer in self.layers:
            x = layer(x, [rows], positions)
        return self.norm(x)

    def logits(self, index: int, states: F32) -> F32:
        """All of them, or those of the tokens of the likeliest clusters: minus infinity for others."""
        if self._tokens is None:
            return self.head.multiply(states)
        chosen = np.argsort(-self.clusters.multiply(states), axis=1, kind="stable")[:, : self._num_read]
        logits = np.full((len(states), self.sizes.vocab_size), -np.inf, np.float32)
        for row, state, places in zip(logits, states, chosen, strict=True):
            tokens = self._tokens[places].ravel()
            row[tokens] = self.head.rows(tokens) @ state
        return logits


class AssistantDraft(StagedDraft):
    """Proposes by stages that read the target's cache, which no other text's rows share."""

    def evaluated(self, reader: Any, index: int, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        with np.errstate(over="ignore", invalid="ignore"):
            made = reader.advance(index, states, tokens, self.inputs.session.cache)
            return made, reader.logits(index, made)


class AssistantKind(ReaderKind):
    """`gemma4-assistant:PATH_OR_ID`, in the layout of transformers."""

    name = "gemma4-assistant"
    config = AssistantConfig
    draft_type = AssistantDraft
    other_dtypes = ("I64",)  # of the order of tokens

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> Assistant:
        config = AssistantConfig.from_file(folder / "config.json")
        weights, tensors = reader_weights(folder, record, run)
        ordering = _ordering(tensors.get(ORDERING), config, record.name) if config.num_clusters else None
        return Assistant(config, weights, ordering, run.target, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """Layers over the whole context, and the head."""
        assert place is not None, "it has a folder"
        sizes = ModelSizes.of(AssistantConfig.from_file(place / "config.json").own)
        return PassCost.of_folder(place, record, sizes, None)


def _ordering(tensor: SourceTensor | None, config: AssistantConfig, name: str) -> I64:
    """Every token once. Raises ModelError where it is anything else."""
    size, found = config.own.vocab_size, "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
    if tensor is not None and tensor.dtype == "I64":
        tokens: I64 = tensor.array().astype(np.int64)
        if np.array_equal(np.sort(tokens), np.arange(size)):
            return tokens
    raise ModelError(
        f"{name}: tensor {ORDERING} is {found}; I64 [{size}] with every token once is required. Take the assistant's "
        "own file."
    )


GEMMA4_ASSISTANT = AssistantKind()
