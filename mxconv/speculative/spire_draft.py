"""A SPIRe draft: it sees what the level that asks it computed of the text, and its own memory of what it proposes."""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.model.readers.spire import Spire
from mxconv.model.readers.spire_cache import SpireCache
from mxconv.model.tree import Tree
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.draft import Proposal
from mxconv.speculative.level import top_probability
from mxconv.speculative.model_tree import grow_by_passes
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics


class SpireDraft:
    """Proposes a token, or a depth of a tree, a pass.

    Args:
        spire: the model.
        session: of the level that it reads; its states are kept from now on.
        acceptance: the rule of the run.
        statistics: what it did.
        vocab_size: ids that the level above has too.
        confidence: a chain stops behind the first token that is less probable, a tree before a pass none of whose
            nodes is as probable; where no floor is given.
    """

    def __init__(
        self,
        spire: Spire,
        session: Session,
        acceptance: Acceptance,
        statistics: LevelStatistics,
        vocab_size: int,
        confidence: float,
    ) -> None:
        session.states.want(spire.reads)
        self.statistics = statistics
        self._spire = spire
        self._session = session
        self._acceptance = acceptance
        self._vocab_size = vocab_size
        self._confidence = confidence
        self._cache = SpireCache(spire)

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A token a pass; none where the states of the context are not there."""
        proposal = Proposal([])
        if not (most := min(num_tokens, self._most_tokens(context))):
            return proposal
        logits, chance = self._begin(context), 1.0
        for depth in range(most):
            if depth:
                logits = self._pass(proposal.tokens[-1:], Tree(range(-1, depth - 1), depth - 1))[0]
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
        """A pass a depth, over all nodes that may go on."""
        depth = min(most_depth, self._most_tokens(context))
        if not floors or depth < 1:
            return Proposal([], parents=[])

        def goes_on(chance: float, own_chance: float) -> bool:
            return own_chance >= self._confidence if floor is None else chance >= floor

        first = self._begin(context)
        proposal, _ = grow_by_passes(first, len(context), self._pass, self._acceptance, depth, floors, goes_on)
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """What it reads is kept with the session."""

    def _most_tokens(self, context: Sequence[int]) -> int:
        """That it can say; none where the states are not there, or a token that it has no row for."""
        if max(context) >= self._spire.vocab_size or not self._session.holds(context):
            return 0
        return max(self._spire.config.decoder.max_position_embeddings - len(context) + 1, 0)

    def _begin(self, context: Sequence[int]) -> F32:
        """(vocab_size,): the logits behind the context's last token, which the level above has not evaluated."""

        def memory_of(run: range) -> F32:
            if not self._spire.reads.num_states:
                return self._spire.embedded_memory(context[run.start : run.stop])
            return self._spire.past_memory(self._session.states.read(self._spire.reads, run.start, run.stop))

        self._cache.begin(len(context) - 1, memory_of)
        logits: F32 = self._pass(context[-1:])[0]
        return logits

    def _pass(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """(num_rows, vocab_size): the logits of rows of one depth, or of the context's last token."""
        with self.statistics.forward():
            return self._cache.evaluate(tokens, tree)[:, : self._vocab_size]
