"""A DFlash head, in the format of the `speculators` package: `dflash:PATH_OR_ID`.

A few layers over a block: the context's last token, and a mask for each token after it. Every row sees the whole block
and, as keys and values, what a fusion makes of the target's states of all tokens before, so that one pass proposes all
tokens at once.

Source:
    Chen, Liang and Liu, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036).
    Norms, positions and masks: DFlashDraftModel of vllm-project/speculators 0.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe
from mxconv.arch.fields import Fields
from mxconv.arrays import F32, I64
from mxconv.drafts.eagle3 import LAYER_TYPES, among_all, checked_layers, read_layers, target_tokens
from mxconv.drafts.feature_draft import num_shared
from mxconv.drafts.kind import Run
from mxconv.drafts.pass_cost import PassCost, head_bytes
from mxconv.drafts.reader_kind import ReaderConfig, ReaderKind, reader_weights
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.layer import EMBEDDING, Layer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import Reads, SequenceRows
from mxconv.engine.stored_weights import HEAD
from mxconv.engine.tree import Tree
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.kernels.rowwise import rms_norm
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.reader import Reader, ReaderSizes

MOST_IN_BLOCK = 64
LAYER_IDS = "aux_hidden_state_layer_ids"
AS_PUBLISHED = "dflash_config"  # of a config.json as the method's authors write it


@dataclass(frozen=True)
class DflashConfig(ReaderConfig):
    """A DFlash head.

    Args:
        name: of the file, for messages.
        layer: its own layers, Qwen 3's whatever the file calls them, and the target's vocabulary.
        draft_vocab_size: tokens that it can propose.
        block_size: rows of its pass.
        mask_token_id: what stands in the block for tokens to come.
        layer_ids: whose states are fused, as `Eagle3Config` has them.
        is_shifted: whether each row of the block chooses the token after its own, so that the first, of the context's
            last token, chooses one too.
        sees: whether layers with a window see the whole block, as `SequenceRows` has it.

    Source:
        vllm-project/speculators 0.9, DFlashSpeculatorConfig; arXiv 2602.06036.
    """

    name: str
    layer: ModelConfig
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    layer_ids: tuple[int, ...] | None
    is_shifted: bool = False
    sees: Literal["block", "block, causal in windows"] = "block, causal in windows"

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        if AS_PUBLISHED in fields.values:
            return cls._as_published(fields)
        fields.choice("speculators_model_type", ("dflash",))
        layer = _layer(fields.section("transformer_layer_config"))
        draft_vocab_size = fields.size("draft_vocab_size")
        if draft_vocab_size > layer.vocab_size:
            fields.reject("draft_vocab_size", f"at most the target's vocabulary, {layer.vocab_size}, is required")
        if fields.size("target_hidden_size", layer.hidden_size) != layer.hidden_size:
            fields.reject(
                "target_hidden_size", f"the layers' own hidden_size, {layer.hidden_size}, or null is required"
            )
        non_causal = fields.flag("sliding_window_non_causal", False)
        return cls(
            name=fields.name,
            layer=layer,
            draft_vocab_size=draft_vocab_size,
            block_size=_block_size(fields),
            mask_token_id=_mask_token(fields, layer),
            layer_ids=read_layers(fields, LAYER_IDS),
            is_shifted=fields.flag("sample_from_anchor", False),
            sees="block" if non_causal else "block, causal in windows",
        )

    @classmethod
    def _as_published(cls, fields: Fields) -> Self:
        """The same of a head of the method's authors, who number a layer by what goes into it."""
        own, layer = fields.section(AS_PUBLISHED), _layer(fields)
        layers = read_layers(own, "target_layer_ids")
        if layers is None:
            own.reject("target_layer_ids", "a list of layer numbers is required")
        return cls(
            name=fields.name,
            layer=layer,
            draft_vocab_size=layer.vocab_size,
            block_size=_block_size(fields if "block_size" in fields.values else own),
            mask_token_id=_mask_token(own, layer),
            layer_ids=tuple(number + 1 for number in layers),
            sees="block",
        )

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.layer.vocab_size

    @property
    def first_row(self) -> int:
        """The row of a block that chooses the first token."""
        return int(not self.is_shifted)

    @property
    def num_layers(self) -> int:
        return self.layer.num_hidden_layers

    @property
    def most_tokens(self) -> int:
        """How many a block proposes."""
        return self.block_size - self.first_row

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.layer.hidden_size, self.vocab_size, most_tokens=self.most_tokens)

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The states that it reads of a target of `num_layers`, in the order of the fusion.

        Raises:
            ModelError: the target does not have them.
        """
        return checked_layers(self.name, LAYER_IDS, self.layer_ids, num_layers)


def _layer(section: Fields) -> ModelConfig:
    """The description of the layers, which norm queries and keys even where the file calls them Llama's."""
    values = {**section.values, "model_type": "qwen3"}
    if section.choice("model_type", LAYER_TYPES) == "llama" and values.get("head_dim") is None:
        values["head_dim"] = section.size("hidden_size") // section.size("num_attention_heads")
    return describe(Fields(values, section.name))


def _block_size(fields: Fields) -> int:
    count = fields.size("block_size")
    if not 2 <= count <= MOST_IN_BLOCK:
        fields.reject("block_size", f"2 to {MOST_IN_BLOCK} rows are required")
    return count


def _mask_token(fields: Fields, layer: ModelConfig) -> int:
    token = fields.values.get("mask_token_id")
    if type(token) is not int or not 0 <= token < layer.vocab_size:
        fields.reject("mask_token_id", f"a token from 0 to {layer.vocab_size - 1} is required")
    return token


class Dflash(Reader):
    """A head that reads the states of a few layers of the target.

    Args:
        config: of the head.
        weights: under the names of a `speculators` head.
        tokens: (num_tokens,) the target's id of each row of the output head.
        layers: whose states are fused, in that order.
        name: for messages.
        target: its embedding and output head, perhaps of more rows, stand in where the weights have none.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(
        self,
        config: DflashConfig,
        weights: ModelWeights,
        tokens: I64,
        layers: Sequence[int],
        name: str,
        target: Decoder | None = None,
    ) -> None:
        super().__init__(replace(config.sizes, least_layers=max(layers)), Reads(tuple(sorted(layers))), name)
        self.config = config
        self.tokens = tokens
        self._order = [self.reads.layers.index(layer) for layer in layers]
        own, size = CheckedWeights(weights, name), config.layer.hidden_size
        if target is not None and EMBEDDING not in weights.matrices:
            self.embedding = target.embedding
        else:
            self.embedding = own.matrix(EMBEDDING, config.vocab_size, size)
        self.fusion = own.matrix("fc.weight", size, len(layers) * size)
        self._fused_norm = own.vector("hidden_norm.weight", size)
        self.layers = [Layer(own, config.layer, index, f"layers.{index}.") for index in range(config.num_layers)]
        for layer in self.layers:
            _attention(layer).attends_together = True
        self.norm = own.vector("norm.weight", size)
        if target is not None and HEAD not in weights.matrices and len(tokens) == config.vocab_size:
            self.head = target.head
        else:
            self.head = own.matrix(HEAD, len(tokens), size)

    def new_cache(self) -> KVCache:
        """An empty cache for the keys and values of one text."""
        return KVCache(self.config.layer)

    def read(self, states: F32, cache: KVCache) -> None:
        """Add keys and values of tokens, from states (num_states, n, hidden_size), to the cache."""
        joined = np.concatenate([states[place] for place in self._order], axis=1)
        fused = rms_norm(self.fusion.multiply(joined), self._fused_norm, self.config.layer.rms_norm_eps)
        positions = Positions(range(cache.length, cache.length + len(fused)))
        cache.reserve(len(fused))
        for layer in self.layers:
            cache.write(layer.index, *_attention(layer).keys_and_values(fused, positions))
        cache.advance(len(fused))

    def block(self, token: int, cache: KVCache) -> F32:
        """(block_size, hidden_size) float32: the normed states of a block after a cache, which stays as it is."""
        config = self.config
        ids = [token, *[config.mask_token_id] * (config.block_size - 1)]
        rows = SequenceRows(ids, cache, sees=config.sees)
        positions, x = Positions(rows.positions), self.embedding.rows(np.array(ids, np.intp))
        cache.reserve(len(ids))
        for layer in self.layers:
            x = layer(x, [rows], positions)
        return rms_norm(x, self.norm, config.layer.rms_norm_eps)


def _attention(layer: Layer) -> WeightedAttention:
    assert isinstance(layer.mixer, WeightedAttention), "its layers have keys of their own"
    return layer.mixer


class DflashDraft(PassDraft):
    """Proposes a block by one pass; all nodes of a depth of a tree have the same guesses after them."""

    def __init__(self, head: Dflash, inputs: DraftInputs) -> None:
        super().__init__(inputs)
        inputs.session.states.want(head.reads)
        self._head = head
        self._knows_any = bool((head.tokens < inputs.vocab_size).any())
        self._cache = head.new_cache()
        self._numbers: I64 = np.empty(0, np.int64)  # of the states that the cache was made of
        self._logits: F32 = np.empty((0, 0), np.float32)  # of the block's rows that are wanted, of the head's tokens

    def most_tokens(self, context: Sequence[int]) -> int:
        can_read = self._knows_any and self.inputs.has_states_of(context, self._head.sizes.vocab_size)
        return self._head.config.most_tokens if can_read else 0

    def begin(self, context: Sequence[int]) -> F32:
        """Read the states that are new, and evaluate the block."""
        head, states, length = self._head, self.inputs.session.states, len(context) - 1
        with self.statistics.timed_pass(), np.errstate(over="ignore", invalid="ignore"):
            numbers = states.numbers(length)
            start = num_shared(self._numbers, numbers)
            self._cache.truncate(start)
            self._numbers = numbers[:start]
            if start < length:
                head.read(states.read(head.reads, start, length), self._cache)
            self._numbers = numbers
            block, first = head.block(context[-1], self._cache), head.config.first_row
            self._logits = head.head.multiply(block[first : first + self.num_wanted])[:, : len(head.tokens)]
        return self._at_depth(0, 1)

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        return self._at_depth(tree.depths[tree.num_cached] + 1, len(tokens))

    def _at_depth(self, depth: int, num_rows: int) -> F32:
        """The logits (num_rows, vocab_size), all alike, that choose the tokens after nodes of a depth."""
        head = self._head
        row = among_all(self._logits[depth][None], head.tokens, head.config.vocab_size)
        return np.repeat(row[:, : self.inputs.vocab_size], num_rows, axis=0)


class DflashKind(ReaderKind):
    """A head that may know only some of the target's tokens."""

    name = "dflash"
    drafts_at_once = True
    config = DflashConfig
    draft_type = DflashDraft
    other_dtypes = ("I64", "I32", "BOOL")  # of the tables of its vocabulary

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> Dflash:
        config = DflashConfig.from_file(folder / "config.json")
        layers = config.layers_of(run.target.config.num_hidden_layers)
        weights, tensors = reader_weights(folder, record, run)
        tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
        return Dflash(config, weights, tokens, layers, record.name, run.target)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A pass a block; without a vocabulary of its own a head reads the target's output head too."""
        cost = super().cost(record, place, package, target)
        assert place is not None, "it has a folder"
        config = DflashConfig.from_file(place / "config.json")
        if config.draft_vocab_size < config.vocab_size:
            return cost
        return replace(cost, num_bytes=cost.num_bytes + head_bytes(package, is_draft=False))


DFLASH = DflashKind()
