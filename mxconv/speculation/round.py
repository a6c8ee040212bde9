"""A round of speculative decoding: choose, propose, evaluate, judge, keep, learn.

A level is a model that decodes a text by rounds: the target, or a draft with drafts of its own (`model_draft.py`).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import MOST_ROWS
from mxconv.speculation.acceptance import Acceptance, Verdict
from mxconv.speculation.pace import PLAIN, Choice, Outcome, Pace
from mxconv.speculation.passes import Load
from mxconv.speculation.proposal import NOTHING, Draft, Proposal
from mxconv.speculation.selection import Request
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import Ending, Generation, LevelStatistics, RoundTree, Step

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
    acceptance: Acceptance  # the rule of the run
    statistics: LevelStatistics
    drafts: Sequence[Draft]  # the cheaper levels that may propose, the next one first
    pace: Pace  # how many tokens it requests of which

    def round(self, context: Sequence[int], max_tokens: int) -> Step:
        """Let a draft propose, verify it in one forward pass, keep what is accepted and one more token.

        Args:
            context: all tokens so far, at least one.
            max_tokens: the most tokens to return, at least one.
        """
        limit = min(max_tokens - 1, self.decoder.config.max_position_embeddings - len(context))
        meter, load = self.session.passes.meter, self.session.passes.load(self.decoder)
        forced = self.forced(context, limit)
        choice = self.choose(context, limit - len(forced), load)

        begin = meter()
        proposal = self.propose([*context, *forced], choice, MOST_NODES - len(forced))
        proposed = meter() if choice.limits.most_depth else begin
        whole = proposal.after(forced) if forced else proposal
        missing = self.session.align(context, owns_cache=not self.shares_session)
        with self.statistics.timed_pass():
            logits = self.evaluate(missing, whole)
            verdict = self.judge(context, whole, logits)
        if whole.tokens:
            self.session.keep(len(context), verdict.path)  # a node is a row after the context's last
        for draft in self.drafts:
            draft.observe(context, whole, logits)

        chosen = verdict.tokens[len(forced) :]  # none where what seemed certain was not
        if self.drafts and chosen and not choice.is_resting:
            drafting, verifying = proposed - begin, meter() - proposed
            counts = len(proposal.tokens), len(chosen) - 1, len(missing) + len(whole.tokens)
            outcome = Outcome(*counts, drafting.seconds, verifying.seconds, proposal.depth, load)
            outcome = outcome._replace(joint=verifying.joint(load), draft_sharers=drafting.sharers(load))
            self.learn(choice, proposal, chosen, outcome)
        name = self.drafts[choice.draft].statistics.name if choice.limits.most_depth and chosen else None
        return self.step(verdict, whole, logits, len(forced), name)

    def forced(self, context: Sequence[int], most: int) -> list[int]:
        """What a constraint makes certain: judged with what is proposed after it, in the same pass."""
        rules = self.acceptance.rules
        if rules is None or self.acceptance.draws_what_is_left:
            return []
        forced = rules.forced(context, min(most, MOST_FORCED))
        return list(takewhile(lambda token: token < self.vocab_size, forced))

    def choose(self, context: Sequence[int], limit: int, load: Load) -> Choice:
        """The draft to query and the limits of its proposal, of at most so many tokens."""
        if not self.drafts or limit <= 0:
            return PLAIN
        return self.pace.choose(limit, load, [draft.num_unread(context) for draft in self.drafts])

    def rests_for(self, num_rounds: int) -> bool:
        """Whether no draft pays in so many rounds, which the pace then takes as done."""
        return not self.drafts or self.pace.skip(num_rounds, self.session.passes.load(self.decoder))

    def propose(self, context: Sequence[int], choice: Choice, most_nodes: int) -> Proposal:
        """The proposal of the chosen draft, of tokens that this level has and no constraint rules out."""
        limits = choice.limits
        if not limits.most_depth:
            return NOTHING
        if len(limits.floors) > most_nodes and not limits.is_chain:
            limits = replace(limits, floors=limits.floors[:most_nodes])
        proposal = self.drafts[choice.draft].propose(context, limits).within(self.vocab_size, limits.most_depth)
        rules = self.acceptance.rules
        return proposal if rules is None else rules.allowed(context, proposal)

    def evaluate(self, missing: Sequence[int], proposal: Proposal) -> F32:
        """The logits after the context and after every proposed token, of one pass over them all."""
        num_rows, tree = len(proposal.tokens) + 1, None
        if proposal.tokens and proposal.is_branched:
            if num_before := max(len(missing) + len(proposal.tokens) - MOST_ROWS, 0):  # a tree has no more rows
                self.session.feed(self.decoder, missing[:num_before], 1)
            missing = missing[num_before:]
            tree = proposal.rows(len(missing))
        return self.session.feed(self.decoder, [*missing, *proposal.tokens], num_rows, tree)[:, : self.vocab_size]

    def judge(self, context: Sequence[int], proposal: Proposal, logits: F32) -> Verdict:
        """The accepted path and one more token, by the rule of the run; the first disagreement ends it."""
        rules = self.acceptance.rules
        rows = logits if rules is None else rules.rows(logits, context, proposal)
        return self.acceptance.judge(rows, proposal, len(context))

    def learn(self, choice: Choice, proposal: Proposal, chosen: Sequence[int], outcome: Outcome) -> None:
        """Count the proposal, and let its draft and the pace see what became of it."""
        if num_requested := choice.limits.most_depth:
            draft = self.drafts[choice.draft]
            draft.statistics.count(num_requested, proposal.depth, outcome.num_accepted, proposal.widths)
            draft.learn(choice.limits, proposal, chosen)
        self.pace.learn(choice, outcome)

    def step(self, verdict: Verdict, whole: Proposal, logits: F32, num_forced: int, name: str | None) -> Step:
        """The tokens with who guessed them, kept with the proposal where trees are recorded."""
        if self.statistics.trees is not None:
            self.statistics.trees.append(
                RoundTree(name, whole.tokens, whole.parents, whole.probabilities, verdict.tokens)
            )
        certain = [CONSTRAINT] * min(num_forced, len(verdict.path))
        guessers = [*certain, *[name] * (len(verdict.path) - len(certain)), None]
        rows = [0, *(node + 1 for node in verdict.path)]
        is_chain = rows[-1] == len(rows) - 1  # nodes come after their parents
        return Step(verdict.tokens, logits[: len(rows)] if is_chain else logits[rows], guessers)


class Decoding:
    """Rounds of a target, with its drafts, after the tokens of a generation so far, until its request has all."""

    def __init__(self, target: Level, request: Request, generation: Generation) -> None:
        self.target = target
        self.context = [*request.prompt, *generation.token_ids]
        self.ending: Ending | None = None
        max_length = len(request.prompt) + request.max_new_tokens
        self._max_length = min(max_length, target.decoder.config.max_position_embeddings + 1)
        self._stop_tokens = request.stop_tokens
        self._trace = generation.trace

    @property
    def is_prompt(self) -> bool:
        """Whether the target has not evaluated the context but for the last token."""
        return len(self.target.session.tokens) < len(self.context) - 1

    def tokens(self, generation: Generation) -> Iterator[tuple[int, F32]]:
        """Each token, with the target's logits that chose it, as rounds decide them; `generation` grows alongside."""
        while self.ending is None:
            begin = time.perf_counter()
            step = self.round()
            generation.seconds += time.perf_counter() - begin
            if not generation.token_ids:
                generation.prompt_seconds = generation.seconds
            for token, logits in zip(step.tokens, step.logits, strict=True):
                generation.token_ids.append(token)
                yield token, logits
            del step, logits  # of as many rows as tokens: the next round has its own
        generation.ending = self.ending

    def round(self) -> Step:
        """One more: its tokens, up to and with the first that ends the text."""
        self._trace.begin_round()
        # the context goes through the target alone: a shared cache must hold its own keys and values
        step = self.target.round(self.context, 1 if self.is_prompt else self._max_length - len(self.context))
        self._trace.end_round()
        step = step.until(self._stop_tokens)
        self.context += step.tokens
        if self.context[-1] in self._stop_tokens:
            self.ending = "stop"
        elif len(self.context) >= self._max_length:
            self.ending = "length"
        return step
