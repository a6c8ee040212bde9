"""Drafts of many sequences at a time, in the shapes that the serving engine gives their passes.

A proposal is an iterator that makes a pass each time it is asked: whoever asks takes the time. Weights are the
package's own where a draft is made of them; those of a SPIRe draft are the target's last layers, which it starts its
training from, and those of a speculator random, of tied stages: time does not hang on them.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from batch_texts import Texts
from greenlet import greenlet

from mxconv.arrays import F32
from mxconv.drafts.passes import StageRows
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator
from mxconv.drafts.readers.spire_cache import SpireCache
from mxconv.drafts.readers.spire_layers import Spire
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.tree import Tree
from mxconv.serving.wanted import WantedRows

STOOD = 3  # tokens by which a text is longer at each proposal: so many keys a SPIRe draft makes of new states


class ModelDraft:
    """A decoder over the target's caches, behind whose positions it writes.

    Args:
        decoder: a row of each sequence a pass.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def propose(self, caches: Sequence[KVCache], draft_rows: Sequence[int]) -> Iterator[None]:
        for count in draft_rows:
            assert count == 1, "only speculators have plans of trees"
            self._decoder.forward_forest([SequenceRows([1], cache) for cache in caches])
            yield


class SpireDrafts:
    """A SPIRe draft of each sequence: one pass over the weights for all, memory for each by itself.

    Args:
        spire: the model.
        texts: whose doors to joint passes it waits at.
    """

    def __init__(self, spire: Spire, texts: Texts) -> None:
        self._spire = spire
        self._doors = texts.passes
        self._caches = [SpireCache(spire, door.forward) for door in texts.passes]
        self._place, self._num_proposals = (0, 0), 0
        shape = spire.config.num_layers, spire.config.sink + spire.config.window, spire.config.hidden_size
        self._memory = np.random.default_rng(1).standard_normal(shape, np.float32)

    def propose(self, caches: Sequence[KVCache], draft_rows: Sequence[int]) -> Iterator[None]:
        assert all(count == 1 for count in draft_rows), "only speculators have plans of trees"
        place = len(caches), caches[0].length
        self._num_proposals = self._num_proposals + 1 if place == self._place else 0
        self._place, num_past = place, caches[0].length + STOOD * self._num_proposals
        doors = self._doors[: len(caches)]
        rounds = [
            greenlet(partial(self._round, cache, num_past, len(draft_rows)))
            for cache, _ in zip(self._caches, caches, strict=False)
        ]
        logits: list[F32 | None] = [None] * len(caches)
        for _ in draft_rows:
            waiting = [door.run(each, row) for door, each, row in zip(doors, rounds, logits, strict=True)]
            wanted = [each.rows for each in waiting if isinstance(each, WantedRows)]
            logits = list(self._spire.decoder.forward_forest(wanted))
            yield
        for door, each, row in zip(doors, rounds, logits, strict=True):
            door.run(each, row)

    def _round(self, cache: SpireCache, num_past: int, num_passes: int) -> None:
        """What a text's own draft does, up to each pass: it waits there for the others."""
        cache.begin(num_past, self._memory_of)
        for place in range(num_passes):
            cache.evaluate([1], Tree(range(-1, place - 1), place - 1) if place else None)

    def _memory_of(self, positions: range) -> F32:
        return self._memory[:, np.array(positions) % self._memory.shape[1]]


class SpeculatorDrafts:
    """An MLP speculator, a stage a pass over the rows of all sequences.

    Args:
        speculator: the model; its stages are tied.
        most_rows: that a pass may have.
    """

    def __init__(self, speculator: MlpSpeculator, most_rows: int) -> None:
        self._speculator = speculator
        random, config = np.random.default_rng(2), speculator.config
        self._read = random.standard_normal((most_rows, config.emb_dim), np.float32)
        self._states = random.standard_normal((most_rows, config.inner_dim), np.float32)

    def propose(self, caches: Sequence[KVCache], draft_rows: Sequence[int]) -> Iterator[None]:
        for stage, count in enumerate(draft_rows):
            num_rows = count * len(caches)
            states = self._states[:num_rows] if stage else self._speculator.begin(self._read[:num_rows])
            StageRows(self._speculator, stage, states, [1] * num_rows).evaluate()
            yield


Draft = ModelDraft | SpireDrafts | SpeculatorDrafts
