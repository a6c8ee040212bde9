"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.readers.speculator import MlpSpeculator
from mxconv.engine.tree import Tree
from mxconv.speculation.draft import Proposal
from mxconv.speculation.passes import StageRows
from mxconv.speculation.readers.candidate_tree import grow_candidates
from mxconv.speculation.readers.reading_draft import Listener, ReadingDraft
from mxconv.speculation.rules.rejection import RejectionAcceptance
from mxconv.speculation.trees.model_tree import Evaluate


class SpeculatorDraft(ReadingDraft):
    """Proposes at most as many tokens as the speculator has stages, each a pass.

    Args:
        speculator: the model.
        listener: for whom it drafts.
        num_candidates: paths of the candidate tree that the paper describes; None grows what is worth its rows.
    """

    def __init__(self, speculator: MlpSpeculator, listener: Listener, num_candidates: int | None = None) -> None:
        super().__init__(speculator.reads, listener)
        self._speculator = speculator
        self._num_candidates = num_candidates

    def grown(
        self,
        first: F32,
        evaluate: Evaluate,
        position: int,
        depth: int,
        floors: Sequence[float],
        floor: float | None,
    ) -> Proposal:
        acceptance = self.listener.acceptance
        if not self._num_candidates or isinstance(acceptance, RejectionAcceptance):
            return super().grown(first, evaluate, position, depth, floors, floor)
        top_k = self._speculator.config.top_k_tokens_per_head[:depth]
        return grow_candidates(first, position, evaluate, acceptance, top_k, self._num_candidates)

    def most_tokens(self, context: Sequence[int]) -> int:
        """Its stages; none where no state has chosen the last token, or that one has no row."""
        can_read = (
            len(context) > 1 and context[-1] < self._speculator.vocab_size and self.listener.session.holds(context)
        )
        return len(self._speculator.stages) if can_read else 0

    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        states = self.listener.session.states
        (read,) = states.read(self._speculator.reads, len(context) - 2, len(context) - 1)
        stages = _Stages(self._speculator, read, context[-1], self.listener)
        return stages.first, stages.evaluate


class _Stages:
    """The stages behind one context.

    Args:
        speculator: the model.
        read: (1, hidden_size) the state that chose the context's last token.
        last_token: of the context.
        listener: for whom they draft, in whose passes.
    """

    def __init__(self, speculator: MlpSpeculator, read: F32, last_token: int, listener: Listener) -> None:
        self._speculator = speculator
        self._listener = listener
        self._depth = 0
        self._states, logits = self._stage(speculator.begin(read), [last_token])  # of the context; then, a row each
        self.first: F32 = logits[0]

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows, all of one depth, the next."""
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._stage(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _stage(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        rows = StageRows(self._speculator, self._depth, states, tokens)
        with self._listener.statistics.forward():
            made, logits = self._listener.session.passes.stage(rows)
        self._depth += 1
        return made, logits[:, : self._listener.vocab_size]
