"""The decoder whose whole forward pass is one native call; the NumPy one remains what it is compared with."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.layer import PairedLayers
from mxconv.engine.native_parts import NativeParts, handle, native_of
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows, StateRoom
from mxconv.engine.state_cache import StateCache
from mxconv.engine.tree import GrownTree, TreeLimits
from mxconv.engine.weights import ModelWeights, ScreenedHead
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix, file_errors


class NativeDecoder(Decoder):
    """The same model, checks and row promise as `Decoder`, by the native kernels.

    Its bits are not those of NumPy: they are a promise per machine, instruction set and build. BF16 weights multiply
    activations rounded to BF16, as such models were trained to. Every matrix but those that are looked up is a
    `NativeMatrix`; `engine` says which kernels run, on how many threads.
    """

    planes: _native.PlaneReader | None = None  # where not all weights are in memory

    def __init__(self, config: ModelConfig, weights: ModelWeights, name: str, engine: _native.Engine) -> None:
        self.engine = engine
        super().__init__(config, weights, name)

    def _bind(self) -> None:
        config = self.config
        self._parts = NativeParts(config)
        self.handle = _native.Decoder(
            self.engine,
            [self._parts.layer(layer) for layer in self.layers],
            native_of(self.norm),
            handle(self.head.head if isinstance(self.head, ScreenedHead) else self.head),
            config.logit_multiplier,
            config.logit_cap or 0.0,
            (len(config.attentions), config.num_key_value_heads, config.head_dim),
            _screen(self.head),
        )
        if self.planes is not None:
            self.handle.read_ahead(self.planes, [layer.index for layer in self.layers])

    def read_ahead(self, planes: _native.PlaneReader) -> None:
        """Have passes, those of later variants too, multiply by planes that are read meanwhile."""
        self.planes, self.reads_ahead = planes, True
        self._bind()

    def _evaluate(
        self,
        ids: NDArray[np.intp],
        sequences: Sequence[SequenceRows],
        positions: Positions,
        rooms: Sequence[StateRoom | None],
    ) -> F32:
        logits = np.empty((sum(rows.num_wanted for rows in sequences), self.config.vocab_size), np.float32)
        retrieves = self.retrieves
        tokens = [sequence_tokens(rows, room, retrieves) for rows, room in zip(sequences, rooms, strict=True)]
        tables = self._parts.tables(positions)
        with file_errors():
            x, own = self.first_inputs(ids, positions)
            self.handle.forward(x, **tables, layer_inputs=own, logits=logits, sequences=tokens)
        if self._fills_ranges:
            for rows in sequences:
                rows.cache.ranges.num_pages = (rows.cache.length + rows.num_rows) // PAGE
        return logits

    def grow(self, token_ids: Sequence[int], cache: KVCache, vocab_size: int, limits: TreeLimits) -> GrownTree | None:
        embedding, others = self.embedding, (self.position_embedding, self.layer_inputs, cache.states)
        if not (isinstance(embedding, NativeMatrix) and embedding.has_16_bits) or any(x is not None for x in others):
            return None
        rows = SequenceRows(token_ids, cache, None, 1)
        rows.checked_ids(self.config, self.name)
        multiplier, num_whole = self.config.embedding_multiplier, (cache.length + len(token_ids)) // PAGE
        made = grow_natively(
            self.handle, self._parts, rows, embedding, vocab_size, limits, multiplier, retrieves=self.retrieves
        )
        if self._fills_ranges:
            cache.ranges.num_pages = num_whole
        return made

    @property
    def _fills_ranges(self) -> bool:
        """Whether a pass puts the ranges of keys of every layer that drafts retrieve from."""
        return self.retrieves and len(self.layers) == self.config.num_hidden_layers


class NativePairs:
    """Paired layers whose trees grow in one call; `PairedLayers` is what it is compared with."""

    def __init__(self, paired: PairedLayers, engine: _native.Engine) -> None:
        self.paired = paired
        config, rules, first = paired.config, paired.rules, paired.layers[0]
        assert first.before_mixer is not None, "its layers norm what attention takes in"
        eps = config.rms_norm_eps
        feature_norm = _native.Norm(native_of(paired.feature_norm), None, eps, False)
        self._norm = _native.Norm(native_of(paired.norm), None, eps, False)
        self._of_embedding = native_of(first.before_mixer)
        self._when_taken = feature_norm if rules.adds_to_normed else None
        self._parts = NativeParts(config)
        taken = partial(_native.pairs, norm=None if rules.adds_to_normed else feature_norm, layer_input=0)
        self.handle = _native.Decoder(
            engine,
            [self._parts.layer(layer, taken if layer is first else None) for layer in paired.layers],
            self._norm,
            handle(paired.head),
            1.0,
            0.0,
            (len(config.attentions), config.num_key_value_heads, config.head_dim),
            None,
        )

    def grow(
        self, features: F32, tokens: Sequence[int], cache: KVCache, vocab_size: int, limits: TreeLimits
    ) -> GrownTree:
        """Evaluate a chain of pairs after those in the cache, and below it a tree of the likeliest tokens.

        The cache then holds all rows. A pair is at its token's position, one after its place.

        Args:
            features: (n, hidden_size) float32, of the token before each.
            tokens: n ids of the embedding, at least one.
            cache: of the layers.
            vocab_size: ids from here on are not guessed; at least one that the head knows lies below.
            limits: of the tree.
        """
        paired, rows = self.paired, SequenceRows(tokens, cache, None, 1)
        of_made = self._norm if paired.rules.feeds_normed else None
        given = _native.Features(
            np.ascontiguousarray(features), self._of_embedding, self._when_taken, of_made, paired.tokens
        )
        num_known = int(np.searchsorted(paired.tokens, vocab_size))
        if limits.penalties is not None:
            limits = replace(limits, penalties=limits.penalties.by_place(paired.tokens))
        made = grow_natively(self.handle, self._parts, rows, paired.embedding, num_known, limits, features=given)
        return replace(made, tokens=paired.tokens[made.tokens].tolist())


def _screen(head: Matrix) -> _native.HeadScreen | None:
    """What chooses the rows of a head that are read."""
    if not isinstance(head, ScreenedHead):
        return None
    projection = None if head.projection is None else _native.Projection(handle(head.projection), None)
    return _native.HeadScreen(projection, _native.Projection(handle(head.scores), None), head.num_candidates)


def grow_natively(
    decoder: _native.Decoder,
    parts: NativeParts,
    rows: SequenceRows,
    embedding: Matrix,
    vocab_size: int,
    limits: TreeLimits,
    multiplier: float = 1.0,
    features: _native.Features | None = None,
    retrieves: bool = False,
) -> GrownTree:
    """Evaluate a chain and a tree below it, and advance the cache by both.

    Args:
        decoder: of layers that `parts` made.
        parts: whose tables they look up.
        rows: the chain.
        embedding: 16-bit weights.
        vocab_size: how many of the first rows of the head may be guessed.
        limits: of the tree.
        multiplier: of embeddings.
        features: of paired layers, each of which is at the position of its token, one after its place.
        retrieves: whether the decoder retrieves pages.
    """
    cache, num_tokens = rows.cache, len(rows.token_ids)
    cache.reserve(num_tokens + limits.most_rows)
    start = rows.positions[0] + (features is not None)
    with file_errors():
        made = decoder.grow(
            token_ids=list(rows.token_ids),
            embedding=handle(embedding),
            multiplier=multiplier,
            **parts.tables(Positions(range(start, start + num_tokens + limits.most_depth - 1))),
            sequence=sequence_tokens(rows, None, retrieves),
            vocab_size=vocab_size,
            limits=_limits(limits),
            features=features,
        )
    cache.advance(num_tokens + len(made.rows))
    return GrownTree(**{field.name: getattr(made, field.name) for field in fields(GrownTree)})


def _limits(limits: TreeLimits) -> _native.TreeLimits:
    draws = penalties = None
    if (given := limits.draws) is not None:
        draws = _native.Draws(**vars(given.sampling), seed=given.seed, position=given.position)
    if (held := limits.penalties) is not None:
        of = held.penalties  # but for `min_new_tokens`: an end that is guessed too early is refused by the level above
        counts = held.tokens, held.num_in_text, held.num_in_answer
        penalties = _native.Penalties(of.repetition, of.presence, of.frequency, of.logit_bias, *counts)
    return _native.TreeLimits(**vars(limits) | {"draws": draws, "penalties": penalties})


def sequence_tokens(rows: SequenceRows, room: StateRoom | None, retrieves: bool = False) -> _native.SequenceTokens:
    cache, ranges = rows.cache, rows.cache.ranges
    tree = None if rows.tree is None or rows.tree.is_chain else rows.tree
    return _native.SequenceTokens(
        _native.Pages(cache.dtype, cache.pool.pages.arrays, cache.numbers),
        length=cache.length,
        num_tokens=rows.num_rows,
        num_logits=rows.num_wanted,
        masks=None if tree is None else tree.masks[tree.num_cached :],
        mask_start=0 if tree is None else cache.length - tree.num_cached,
        stages=[] if room is None else room.stages,
        states=None if room is None else room.values,
        num_left_out=cache.num_left_out,
        walk=None if cache.states is None else _walk(cache.states),
        key_ranges=ranges.array(cache) if retrieves else None,
        num_ranges=ranges.num_pages if retrieves else 0,
    )


def _walk(states: StateCache) -> _native.Walk:
    """The pass that has begun; the native decoder follows it and writes where `StateCache.run` would."""
    walk = states.of_this_pass
    return _native.Walk(
        windows=states.windows,
        memories=states.memories,
        inputs=(states.origin, states.inputs),
        kept=states.kept,
        source=walk.source,
        first=walk.first,
        stop=walk.stop,
        length=walk.length,
        saves=list(walk.saves),
        branches=list(walk.branches),
    )
