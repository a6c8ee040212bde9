"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.model.readers.speculator import MlpSpeculator
from mxconv.model.tree import Tree
from mxconv.speculative.acceptance import Acceptance, RejectionAcceptance
from mxconv.speculative.candidate_tree import grow_candidates
from mxconv.speculative.draft import Proposal
from mxconv.speculative.level import top_probability
from mxconv.speculative.model_tree import grow_by_passes
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics


class SpeculatorDraft:
    """Proposes at most as many tokens as the speculator has stages.

    Args:
        speculator: the model.
        session: of the level that it reads; its states are kept from now on.
        acceptance: the rule of the run.
        statistics: what it did; every stage counts as a forward pass.
        vocab_size: ids that the level above has too.
        confidence: a chain stops behind the first token that is less probable, a tree before a pass none of whose
            nodes is as probable; where no floor is given.
        num_candidates: paths of the candidate tree that the paper describes; None grows what is worth its rows.
    """

    def __init__(
        self,
        speculator: MlpSpeculator,
        session: Session,
        acceptance: Acceptance,
        statistics: LevelStatistics,
        vocab_size: int,
        confidence: float,
        num_candidates: int | None = None,
    ) -> None:
        session.states.want(speculator.reads)
        self.statistics = statistics
        self._speculator = speculator
        self._session = session
        self._acceptance = acceptance
        self._vocab_size = vocab_size
        self._confidence = confidence
        self._num_candidates = num_candidates

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A token a stage; none where the states of the context are not there."""
        proposal = Proposal([])
        if not self._hears(context):
            return proposal
        stages, chance = self._stages(context), 1.0
        logits = stages.first[0]
        for depth in range(min(num_tokens, self._most)):
            if depth:
                logits = stages.evaluate(proposal.tokens[-1:], Tree(range(-1, depth - 1), depth - 1))[0]
            guess = self._acceptance.guesses(logits, len(context) + depth, 0.0, 1)
            if not guess.tokens:
                break
            proposal.tokens.extend(guess.tokens)
            if guess.distribution is not None:
                proposal.distributions.append(guess.distribution)
            proposal.probabilities.append(top_probability(logits))
            chance *= proposal.probabilities[-1]
            if not (proposal.probabilities[-1] >= self._confidence if floor is None else chance >= floor):
                break
        return proposal

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A stage a depth, over all nodes that may go on."""
        if not floors or most_depth < 1 or not self._hears(context):
            return Proposal([], parents=[])
        stages, depth = self._stages(context), min(most_depth, self._most)
        if self._num_candidates and not isinstance(self._acceptance, RejectionAcceptance):
            top_k = self._speculator.config.top_k_tokens_per_head[:depth]
            return grow_candidates(
                stages.first[0], len(context), stages.evaluate, self._acceptance, top_k, self._num_candidates
            )

        def goes_on(chance: float, own_chance: float) -> bool:
            return own_chance >= self._confidence if floor is None else chance >= floor

        proposal, _ = grow_by_passes(
            stages.first[0], len(context), stages.evaluate, self._acceptance, depth, floors, goes_on
        )
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """What it reads is kept with the session."""

    def _hears(self, context: Sequence[int]) -> bool:
        """Whether the state is there, and the last token is one that it has a row for."""
        return context[-1] < self._speculator.vocab_size and self._session.holds(context)

    @property
    def _most(self) -> int:
        return len(self._speculator.stages)

    def _stages(self, context: Sequence[int]) -> "_Stages":
        (read,) = self._session.states.read(self._speculator.reads, len(context) - 2, len(context) - 1)
        return _Stages(self._speculator, read, context[-1], self.statistics, self._vocab_size)


class _Stages:
    """The stages behind one context.

    Args:
        speculator: the model.
        read: (1, hidden_size) the state that chose the context's last token.
        last_token: of the context.
        statistics: of the draft.
        vocab_size: of the logits.
    """

    def __init__(
        self, speculator: MlpSpeculator, read: F32, last_token: int, statistics: LevelStatistics, vocab_size: int
    ) -> None:
        self._speculator = speculator
        self._statistics = statistics
        self._vocab_size = vocab_size
        self._depth = 0
        self._states, self.first = self._stage(speculator.begin(read), [last_token])  # of the context; then, a row each

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows, all of one depth, the next."""
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._stage(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _stage(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        with self._statistics.forward():
            made = self._speculator.advance(self._depth, states, tokens)
            logits = self._speculator.logits(self._depth, made)
        self._depth += 1
        return made, logits[:, : self._vocab_size]
