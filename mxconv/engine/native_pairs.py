"""Paired layers whose trees grow in one native call."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.native_decoder import grown
from mxconv.engine.native_parts import NativeParts, handle, native_of
from mxconv.engine.paired_layers import PairedLayers
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import GrownTree, TreeLimits
from mxconv.kernels import _native


class NativePairs:
    """Implements `PairGrower`; `PairedLayers` is what it is compared with."""

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
        paired, rows = self.paired, SequenceRows(tokens, cache, None, 1)
        of_made = self._norm if paired.rules.feeds_normed else None
        given = _native.Features(
            np.ascontiguousarray(features), self._of_embedding, self._when_taken, of_made, paired.tokens
        )
        num_known = int(np.searchsorted(paired.tokens, vocab_size))
        if limits.penalties is not None:
            limits = replace(limits, penalties=limits.penalties.by_place(paired.tokens))
        made = grown(self.handle, self._parts, rows, paired.embedding, num_known, limits, features=given)
        return replace(made, tokens=paired.tokens[made.tokens].tolist())
