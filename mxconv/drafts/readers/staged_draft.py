"""How readers draft that propose by stages: a pass a stage, of a chain or of a depth of a tree."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.tree import Tree
from mxconv.speculation.loaded_level import Listener
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.reader import StagedReader, StageRows


class StagedDraft(PassDraft):
    """Proposes at most as many tokens as the reader has stages."""

    def __init__(self, reader: StagedReader, listener: Listener) -> None:
        super().__init__(listener)
        listener.session.states.want(reader.reads)
        self._reader = reader
        self._stage = 0
        self._states: F32 = np.empty((0, 0), np.float32)  # after the context; then, a row each

    def most_tokens(self, context: Sequence[int]) -> int:
        """Its stages; 0 where no state has chosen the last token, or that one has no row."""
        has_row = len(context) > 1 and context[-1] < self._reader.sizes.vocab_size
        return self._reader.num_stages if has_row and self.listener.session.holds(context) else 0

    def begin(self, context: Sequence[int]) -> F32:
        self._stage = 0
        self._states, logits = self._evaluated(self._reader.begin(self.read(context)), context[-1:])
        return logits

    def read(self, context: Sequence[int]) -> F32:
        """(1, hidden_size) float32: the state that chose the context's last token."""
        place = len(context) - 2
        read: F32 = self.listener.session.states.read(self._reader.reads, place, place + 1)[0]
        return read

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        if not self._reader.reads_tokens:  # all nodes of a depth have the same guesses after them
            _, row = self._evaluated(self._states[:1], tokens[:1])
            same: F32 = np.repeat(row, len(tokens), axis=0)
            return same
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._evaluated(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _evaluated(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        """The states and logits of the next stage."""
        rows = StageRows(self._reader, self._stage, states, tokens)
        with self.statistics.forward():
            made, logits = self.listener.session.passes.stage(rows)
        self._stage += 1
        return made, logits[:, : self.listener.vocab_size]
