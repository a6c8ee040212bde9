"""Drafts that propose by passes of a network: a model with its cache, or one that reads another's hidden states.

in one call      where the decoder grows trees itself, and the rule of the run allows it
pass by pass     a pass a depth, over all nodes that may have children worth a row
verified         a model with drafts of its own decodes by rounds; what it nearly chose are the runners-up
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.proposal import Draft, Proposal, Sharpness
from mxconv.speculation.reader import StagedReader, StageRows
from mxconv.speculation.round import MOST_NODES, Level
from mxconv.speculation.trees import Evaluate, grow_by_passes, of_grown, with_runners_up

USUAL_DEPTH = 4  # of a proposal that may be long, and ends by its chances
WORTH_ROUNDS = 6e-3  # seconds of a pass: a round takes .6 ms of Python, and look-ups save a tenth of the passes


class PassDraft(Draft):
    """A draft whose passes give the logits after a context, then those after the nodes of a tree, depth by depth."""

    def __init__(self, inputs: DraftInputs) -> None:
        self.statistics = inputs.statistics
        self.inputs = inputs
        self.num_wanted = 0  # tokens of a path of the proposal that begins

    @abstractmethod
    def most_tokens(self, context: Sequence[int]) -> int:
        """The number of tokens that it can propose after a context; 0 where it cannot read all of it."""

    @abstractmethod
    def begin(self, context: Sequence[int]) -> F32:
        """The logits (1, vocab_size) after a context of which `most_tokens` is not 0."""

    @abstractmethod
    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows after the context, all of one depth, the next."""

    def grow_at_once(self, context: Sequence[int], limits: TreeLimits) -> GrownTree | None:
        """A tree of the likeliest tokens after a context of which `most_tokens` is not 0; None: pass by pass alone."""
        return None

    def keep(self, context: Sequence[int], rows: Sequence[int]) -> None:
        """Keep rows of the last proposal's tree in the cache, and forget the others."""

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """In one call, or pass by pass."""
        setup = self.inputs
        limits = limits.of_draft(self.most_tokens(context), setup.confidence, setup.sharpness.value)
        if limits.most_depth < 1 or not limits.floors:
            return Proposal([])
        self.num_wanted = limits.most_depth
        return self.grow(context, limits)

    def grow(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The tree within the draft's own limits, of at least one token."""
        rule = self.inputs.acceptance
        by_rule = rule.at_once(limits, context) if len(limits.floors) <= MOST_NODES else None
        grown = None if by_rule is None else self.grow_at_once(context, by_rule)
        proposal, rows = self.by_passes(context, limits) if grown is None else of_grown(grown, limits)
        self.keep(context, rows)
        return proposal

    def by_passes(self, context: Sequence[int], limits: TreeLimits) -> tuple[Proposal, list[int]]:
        """The tree, and its rows to keep, of a pass a depth."""
        first, evaluate = self.passes(context)
        return grow_by_passes(first, len(context), evaluate, self.inputs.acceptance, limits)

    def passes(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """The first logits and the passes after them, as the rules of the run change them."""
        first: F32 = self.begin(context)[0]
        rules = self.inputs.acceptance.rules
        return (first, self.evaluate) if rules is None else rules.passes(context, first, self.evaluate)

    def learn(self, limits: TreeLimits, proposal: Proposal, tokens: Sequence[int]) -> None:
        if not limits.is_chain or limits.least_sum is not None:
            self.inputs.sharpness.learn(proposal, tokens)


class ModelDraft(PassDraft):
    """A model as a draft for the level above, perhaps with drafts of its own.

    Args:
        level: the model, its cache and its drafts.
        confidence: as `DraftInputs` has it.
        sharpness: likewise.
        weighs_rounds: whether it may leave its drafts aside where its own passes take less than a round with them.
    """

    def __init__(self, level: Level, confidence: float, sharpness: Sharpness, weighs_rounds: bool = False) -> None:
        rule, statistics, size = level.acceptance, level.statistics, level.vocab_size
        super().__init__(DraftInputs(level.session, rule, statistics, size, confidence, sharpness))
        self.level, self._weighs_rounds = level, weighs_rounds

    def most_tokens(self, context: Sequence[int]) -> int:
        """Up to the last position; 0 where it does not know one of the tokens."""
        config = self.level.decoder.config
        known = max(context) < config.vocab_size
        return max(config.max_position_embeddings - len(context) + 1, 0) if known else 0

    def num_unread(self, context: Sequence[int]) -> int:
        """Those after its cache; where it shares the target's, that has read them."""
        return 0 if self.level.shares_session else max(len(context) - len(self.level.session.tokens), 0)

    def grow(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """In a cache that they share, what a draft writes is not the target's: afterwards it is as it was."""
        level, rules = self.level, self.level.acceptance.rules
        is_masked = rules is not None and rules.mask is not None and limits.is_chain  # rounds skip what is certain
        with level.session.borrow(context) if self.level.shares_session else nullcontext():
            if is_masked or not (self._is_fast or level.rests_for(min(limits.most_depth, USUAL_DEPTH))):
                return with_runners_up(self._chosen(context, limits), len(context), level.acceptance, limits)
            return super().grow(context, limits)

    @property
    def _is_fast(self) -> bool:
        """Whether a pass is so short, and of one text, that rounds with drafts of its own would take longer."""
        statistics, level = self.statistics, self.level
        is_short = 0 < statistics.seconds < WORTH_ROUNDS * statistics.num_forwards
        return self._weighs_rounds and is_short and level.session.passes.are_at_once(level.decoder, 1)

    def begin(self, context: Sequence[int]) -> F32:
        return self._pass(self._missing(context))

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        return self._pass(tokens, tree)

    def grow_at_once(self, context: Sequence[int], limits: TreeLimits) -> GrownTree | None:
        level, statistics = self.level, self.statistics
        begin, missing = statistics.clock(), self._missing(context)
        grown = level.session.grow(level.decoder, missing, level.vocab_size, limits, self.level.shares_session)
        if grown is not None:
            statistics.seconds += statistics.clock() - begin
            statistics.num_forwards += grown.num_passes
        return grown

    def keep(self, context: Sequence[int], rows: Sequence[int]) -> None:
        """A cache that is borrowed will be as it was anyway."""
        if not self.level.shares_session or self.level.session.cache.states is not None:
            self.level.session.keep(len(context), rows)

    def _chosen(self, context: Sequence[int], limits: TreeLimits) -> Iterator[tuple[int, F32]]:
        """Each token that the model chooses by rounds, with the logits that chose it, as rules changed them."""
        rules = self.level.acceptance.rules
        tokens: list[int] = []
        while len(tokens) < limits.most_depth:
            step = self.level.round([*context, *tokens], limits.most_depth - len(tokens))
            for token, logits in zip(step.tokens, step.logits, strict=True):
                chosen_by = logits if rules is None else rules.row(logits, context, tokens)
                tokens.append(token)
                yield token, chosen_by

    def _missing(self, context: Sequence[int]) -> list[int]:
        """The tokens of a context that are not in the cache, which is cut to the others."""
        return self.level.session.align(context, owns_cache=not self.level.shares_session)

    def _pass(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """Logits of a tree's new rows, or without one of the last token alone."""
        with self.statistics.timed_pass():
            num_logits = len(tokens) if tree is not None else 1
            return self.level.session.feed(self.level.decoder, tokens, num_logits, tree)[:, : self.level.vocab_size]


class StagedDraft(PassDraft):
    """Proposes at most as many tokens as the reader has stages."""

    def __init__(self, reader: StagedReader, inputs: DraftInputs) -> None:
        super().__init__(inputs)
        inputs.session.states.want(reader.reads)
        self._reader = reader
        self._stage = 0
        self._states: F32 = np.empty((0, 0), np.float32)  # after the context; then, a row each

    def most_tokens(self, context: Sequence[int]) -> int:
        """Its stages; 0 where no state has chosen the last token, or that one has no row."""
        has_row = len(context) > 1 and context[-1] < self._reader.sizes.vocab_size
        return self._reader.num_stages if has_row and self.inputs.session.holds(context) else 0

    def begin(self, context: Sequence[int]) -> F32:
        self._stage = 0
        self._states, logits = self._evaluated(self._reader.begin(self.read(context)), context[-1:])
        return logits

    def read(self, context: Sequence[int]) -> F32:
        """(1, hidden_size) float32: the state that chose the context's last token."""
        place = len(context) - 2
        read: F32 = self.inputs.session.states.read(self._reader.reads, place, place + 1)[0]
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
        with self.statistics.timed_pass():
            made, logits = self.evaluated(self._reader, self._stage, states, tokens)
        self._stage += 1
        return made, logits[:, : self.inputs.vocab_size]

    def evaluated(self, reader: StagedReader, index: int, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        """The states and logits of a stage, whose rows other texts may share."""
        return self.inputs.session.passes.stage(StageRows(reader, index, states, tokens))
