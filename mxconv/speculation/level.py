"""A level of the hierarchy: a model that verifies what its draft proposes, and is itself a draft for the level above.

Recursion does the rest. `step` is one speculative round; `propose` repeats it until the level above has what it wants.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod

from mxconv.arrays import F32, F64
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import MOST_ROWS, Tree, TreeLimits
from mxconv.speculation.acceptance import Acceptance, RejectionAcceptance, limits_at_once
from mxconv.speculation.generation import Step
from mxconv.speculation.guesses import Sharpened, Sharpness
from mxconv.speculation.pace import PLAIN, Choice, Outcome, Pace
from mxconv.speculation.proposal import Draft, Proposal, TreeDraft
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics, RoundTree
from mxconv.speculation.trees import Evaluate, GoesOn, grow_by_passes, least_chances, of_grown, with_runners_up

MOST_NODES = MOST_ROWS - 1  # of a tree, beside the context's last token
MOST_FORCED = 15  # of these, at most, what a constraint makes certain
CONSTRAINT = "constraint"  # who guessed such tokens


@dataclass(frozen=True)
class Level:
    """A model with its cache and, where it has some, its drafts."""

    decoder: Decoder
    session: Session  # its cache; where it shares the target's, that very session
    shares_session: bool  # whether it does, and must leave it as it was found
    vocab_size: int  # ids that every level above has too; those beyond are padding and are never chosen
    confidence: float  # as a draft, it stops after the first token whose distribution has no probability as high
    acceptance: Acceptance  # the rule of the run
    statistics: LevelStatistics
    drafts: Sequence[Draft]  # the cheaper levels it may ask, the next one first
    pace: Pace  # how many tokens it asks of which
    sharpness: Sharpness = field(default_factory=Sharpness)  # of its guesses, as a draft

    def with_decoder(self, decoder: Decoder) -> "Level":
        """The same level with another decoder."""
        return replace(self, decoder=decoder)

    def step(self, context: Sequence[int], max_tokens: int) -> Step:
        """One round: let a draft propose, verify it in one forward pass, keep what is accepted and one more token.

        Args:
            context: all tokens so far, at least one.
            max_tokens: the most tokens to return, at least one.
        """
        limit = min(max_tokens - 1, self.decoder.config.max_position_embeddings - len(context))
        meter, load = self.session.passes.meter, self.session.passes.load(self.decoder)
        forced = self._forced(context, limit)
        limit -= len(forced)
        if self.drafts and limit > 0 and self.pace.skip(1, load):
            whole = Proposal(forced)
            return self._told(self._verify(context, whole)[0], whole, len(forced), None, [])
        choice = self.pace.choose(limit, load) if self.drafts and limit > 0 else PLAIN
        begin = meter()
        most_nodes = MOST_NODES - len(forced)
        proposal = self._proposal([*context, *forced], choice, most_nodes) if choice.num_tokens else Proposal([])
        proposed = meter()
        whole = proposal.after(forced) if forced else proposal
        step, num_evaluated = self._verify(context, whole)
        drafting, verifying = proposed - begin, meter() - proposed
        judged = step.tokens[len(forced) :]  # of the draft's; none where what seemed certain was not
        num_accepted = len(judged) - 1
        name: str | None = None
        guessers: list[str | None] = []  # of each accepted token that was not certain
        if choice.num_tokens and judged:
            draft = self.drafts[choice.draft]
            draft.statistics.count(choice.num_tokens, proposal.depth, num_accepted, proposal.widths)
            name = draft.statistics.name
            guessers = [name] * num_accepted
            if isinstance(draft, Sharpened):
                draft.sharpness.learn(proposal, judged)
        if self.drafts and judged:
            outcome = Outcome(
                len(proposal.tokens),
                num_accepted,
                num_evaluated,
                drafting.seconds,
                verifying.seconds,
                proposal.chances,
                proposal.depth,
                load,
                verifying.joint(load),
                drafting.sharers(load),
            )
            self.pace.learn(choice, outcome)
        return self._told(step, whole, len(forced), name, guessers)

    def _told(
        self, step: Step, whole: Proposal, num_forced: int, name: str | None, guessers: Sequence[str | None]
    ) -> Step:
        """A step with who guessed its tokens, kept with its proposal where trees are recorded."""
        if self.statistics.trees is not None:
            tree = RoundTree(name, whole.tokens, whole.links, whole.probabilities, step.tokens)
            self.statistics.trees.append(tree)
        certain = [CONSTRAINT] * min(num_forced, len(step.tokens) - 1)
        return step._replace(guessed_by=[*certain, *guessers, None])

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Rounds until there are `num_tokens`, or one was chosen without confidence: its own, or all together."""
        tokens: list[int] = []
        distributions: list[F64] = []
        probabilities: list[float] = []
        with self._borrowed(context):
            most = min(num_tokens, self._most_tokens(context))
            if 0 < most <= MOST_NODES and self._is_alone(most):
                grown = self._grow_at_once(
                    context, TreeLimits(most, [0.0] * most, *least_chances(self.confidence, floor), 1.0, 1)
                )
                if grown is not None:
                    return Proposal(grown.tokens, probabilities=grown.probabilities)
            for token, logits, drawn_from in self._own_tokens(context, num_tokens):
                probabilities.append(self.acceptance.chance(logits, len(context) + len(tokens)))
                tokens.append(token)
                distributions += drawn_from
                if not (probabilities[-1] >= self.confidence if floor is None else prod(probabilities) >= floor):
                    break
        return Proposal(tokens, distributions, probabilities)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A pass a depth over all that may go on; with a draft of its own, what it says with its runners-up."""

        def goes_on(chance: float, own_chance: float) -> bool:
            return own_chance >= self.confidence if floor is None else chance >= floor

        most_depth, sharpness = min(most_depth, self._most_tokens(context)), self.sharpness.value
        if not floors or most_depth < 1:
            return Proposal([], parents=[])
        with self._borrowed(context):
            if not self._is_alone(most_depth):
                chosen = ((token, logits) for token, logits, _ in self._own_tokens(context, most_depth))
                return with_runners_up(chosen, len(context), self.acceptance, sharpness, floors, goes_on)
            limits = TreeLimits(most_depth, floors, *least_chances(self.confidence, floor), sharpness)
            grown = self._grow_at_once(context, limits)
            return self._grow_by_passes(context, most_depth, floors, goes_on) if grown is None else grown

    def _is_alone(self, num_rounds: int) -> bool:
        """Whether no draft would help it in so many rounds."""
        return not self.drafts or self.pace.skip(num_rounds, self.session.passes.load(self.decoder))

    def _grow_at_once(self, context: Sequence[int], limits: TreeLimits) -> Proposal | None:
        """All passes in one call, where the decoder and the rule of the run can."""
        by_rule = limits_at_once(self.acceptance, limits, context)
        if by_rule is None:
            return None
        begin, missing = self.statistics.clock(), self._missing(context)
        grown = self.session.grow(self.decoder, missing, self.vocab_size, by_rule, self.shares_session)
        if grown is None:
            return None
        self.statistics.seconds += self.statistics.clock() - begin
        self.statistics.num_forwards += grown.num_passes
        proposal, kept = of_grown(grown, limits.floors)
        self._keep(context, kept)
        return proposal

    def _grow_by_passes(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], goes_on: GoesOn
    ) -> Proposal:
        evaluate: Evaluate = self._pass
        first = self._pass(self._missing(context))[0]
        if self.acceptance.rules is not None:
            first, evaluate = self.acceptance.rules.passes(context, first, evaluate)
        rule, sharpness = self.acceptance, self.sharpness.value
        proposal, kept = grow_by_passes(first, len(context), evaluate, rule, sharpness, most_depth, floors, goes_on)
        self._keep(context, kept)
        return proposal

    def _keep(self, context: Sequence[int], rows: Sequence[int]) -> None:
        """Keep rows of a proposal; but a cache that is borrowed will be as it was anyway."""
        if not self.shares_session or self.session.cache.states is not None:
            self.session.keep(len(context), rows)

    def _own_tokens(self, context: Sequence[int], num_tokens: int) -> Iterator[tuple[int, F32, list[F64]]]:
        """Each token that it chooses after a context, the logits that chose it, as rules changed them, and what it was
        drawn from."""
        rules = self.acceptance.rules
        tokens: list[int] = []
        while len(tokens) < min(num_tokens, self._most_tokens(context)):
            step = self.step([*context, *tokens], num_tokens - len(tokens))
            for index, (token, logits) in enumerate(zip(step.tokens, step.logits, strict=True)):
                chosen_by = logits if rules is None else rules.row(logits, context, tokens)
                tokens.append(token)
                yield token, chosen_by, step.distributions[index : index + 1]

    def _most_tokens(self, context: Sequence[int]) -> int:
        """The number of tokens that it can propose after a context; 0 where it does not know one of its tokens."""
        if max(context) >= self.decoder.config.vocab_size:
            return 0
        return max(self.decoder.config.max_position_embeddings - len(context) + 1, 0)

    def _missing(self, context: Sequence[int]) -> list[int]:
        """The tokens of a context that are not in the cache, which is cut to the others."""
        return self.session.align(context, is_sole=not self.shares_session)

    def _pass(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """Logits of a tree's new rows, or without one of the last token alone."""
        with self.statistics.forward():
            num_logits = len(tokens) if tree is not None else 1
            return self.session.feed(self.decoder, tokens, num_logits, tree)[:, : self.vocab_size]

    def _borrowed(self, context: Sequence[int]) -> AbstractContextManager[None]:
        """In a cache that they share, what a draft writes is not the target's: afterwards it is as it was."""
        return self.session.borrow(context) if self.shares_session else nullcontext()

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """A model learns nothing from it."""

    def _forced(self, context: Sequence[int], most: int) -> list[int]:
        """What a constraint makes certain: judged with what is proposed after it, in the same pass."""
        rules = self.acceptance.rules
        if rules is None or isinstance(self.acceptance, RejectionAcceptance):
            return []
        forced = rules.forced(context, min(most, MOST_FORCED))
        return list(takewhile(lambda token: token < self.vocab_size, forced))

    def _proposal(self, context: Sequence[int], choice: Choice, most_nodes: int) -> Proposal:
        """What the chosen draft proposes, without what a constraint rules out."""
        proposal, rules = self._guessed(context, choice, most_nodes), self.acceptance.rules
        return proposal if rules is None else rules.allowed(context, proposal)

    def _guessed(self, context: Sequence[int], choice: Choice, most_nodes: int) -> Proposal:
        """What the chosen draft proposes, before the first token that this level's vocabulary does not have."""
        draft = self.drafts[choice.draft]
        if choice.floors and isinstance(draft, TreeDraft):
            proposal = draft.grow(context, choice.num_tokens, choice.floors[:most_nodes], choice.floor)
            return proposal.with_tokens_below(self.vocab_size)
        proposal = draft.propose(context, choice.num_tokens, choice.floor)
        tokens = list(takewhile(lambda token: 0 <= token < self.vocab_size, proposal.tokens[: choice.num_tokens]))
        return Proposal(tokens, proposal.distributions[: len(tokens)], proposal.probabilities[: len(tokens)])

    def _verify(self, context: Sequence[int], proposal: Proposal) -> tuple[Step, int]:
        """Evaluate the context's last token and the proposed ones; the first disagreement ends the round.

        Returns:
            The step, and how many tokens the pass evaluated.
        """
        missing = self._missing(context)
        with self.statistics.forward():
            logits = self._evaluate(missing, proposal)[:, : self.vocab_size]
            rules = self.acceptance.rules
            rows = logits if rules is None else rules.rows(logits, context, proposal)
            verdict = self.acceptance.judge(rows, proposal, len(context))
        self.session.keep(len(context), verdict.path)
        for draft in self.drafts:
            draft.observe(context, proposal, logits)
        kept = [0, *(node + 1 for node in verdict.path)]
        return Step(verdict.tokens, logits[kept], verdict.distributions), len(missing) + len(proposal.tokens)

    def _evaluate(self, missing: Sequence[int], proposal: Proposal) -> F32:
        """The logits after the context and after every proposed token, of one pass over them all."""
        num_rows = len(proposal.tokens) + 1
        if proposal.parents is None:
            return self.session.feed(self.decoder, [*missing, *proposal.tokens], num_rows)
        if num_before := max(len(missing) + len(proposal.tokens) - MOST_ROWS, 0):  # a tree has no more rows
            self.session.feed(self.decoder, missing[:num_before], 1)
        missing = missing[num_before:]
        return self.session.feed(self.decoder, [*missing, *proposal.tokens], num_rows, proposal.rows(len(missing)))
