"""Multi-level speculative decoding: target <- 4-bit draft <- small model <- look-up, to any depth.

    hierarchy = Hierarchy(loaded.levels)
    generation = hierarchy.generate(tokenizer.encode("Once upon a time"), max_new_tokens=64)

Each level drafts for the one above. The target verifies every token it emits, so the output is what it would have
written alone: the same tokens from the same logits, bit for bit, because its rows do not depend on their batch.
`round.py` has the round; here levels are linked for a text.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from typing import Literal, TypeVar

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.package.level_record import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.adaptive_pace import AUTO_NODES, AUTO_TOKENS, STREAMED_TOKENS, AdaptivePace, DraftEstimate
from mxconv.speculation.loaded_level import (
    SHARE_OF_PROMPTS,
    USUAL_SHARE,
    DraftInputs,
    LoadedLevel,
    check_order,
)
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.pace import FixedPace, Pace
from mxconv.speculation.passes import OWN_PASSES, Passes
from mxconv.speculation.proposal import SHARPNESS, Draft, Proposal, Sharpness
from mxconv.speculation.round import Decoding, Level
from mxconv.speculation.selection import GREEDY, Request, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import Generation, LevelStatistics, Trace

Number = TypeVar("Number", int, float)


class NullDraft(Draft):
    """The place of a level that reads hidden states, until the level that it reads is known; it proposes nothing."""

    def __init__(self, statistics: LevelStatistics) -> None:
        self.statistics = statistics

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        return Proposal([])


class Hierarchy:
    """Levels linked by recursion: each is the draft of the one before it.

    Look-ups, which nothing can draft for, come last; of several, those that pay are queried.

    What adaptive levels learn, and tables that plug-ins fill while decoding, stay from one prompt to the next.

    Args:
        levels: the target first.
        num_draft_tokens: for each level below the target; None takes the manifest's, "auto", which commands give where
            no length is given, lets the target choose in each round how many tokens of which other level pay. Drafts
            then decode alone, or with look-ups below them.
        confidence: for each level below the target; None takes the manifest's, or leaves models to "auto" as well.
        tree: drafts propose trees of at most so many nodes; "chain" is none of them, "auto" leaves their size to
            "auto" and is "chain" with lengths that are given.

    Raises:
        ModelError: no levels, or not one number a draft; the target is no model, a level that is none has a model below
            it, a draft that reads hidden states is below a model that it cannot read and that has no other draft, or a
            draft whose parts change has a cache of its own.
    """

    def __init__(
        self,
        levels: Sequence[LoadedLevel],
        num_draft_tokens: Sequence[int] | Literal["auto"] | None = None,
        confidence: Sequence[float] | None = None,
        tree: int | Literal["auto", "chain"] = "auto",
    ) -> None:
        if not levels:
            raise ModelError("hierarchy: 0 levels; at least a target is required.")
        self.levels = list(levels)
        records = [level.record for level in self.levels[1:]]
        lengths = [record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS for record in records]
        thresholds = [DEFAULT_CONFIDENCE if record.confidence is None else record.confidence for record in records]
        self.adaptive = num_draft_tokens == "auto"
        given = None if num_draft_tokens == "auto" else num_draft_tokens
        self.num_draft_tokens = _one_each("--num-draft-tokens", given, lengths)
        self.confidence = _one_each("--confidence", confidence, thresholds)
        check_order(self.levels, self.adaptive)
        num_nodes = {"auto": AUTO_NODES if self.adaptive else 0, "chain": 0}[tree] if isinstance(tree, str) else tree
        num_models = sum(not level.kind.is_look_up for level in self.levels)
        self.paces: list[Pace] = [
            AdaptivePace(self._estimates(index, num_nodes > 0), confidence is None, num_nodes, _most_tokens(level))
            if self.adaptive
            else FixedPace(self.num_draft_tokens[index], num_nodes)
            for index, level in zip(range(num_models), self.levels[: len(records)], strict=False)
        ]
        self._proposers = {
            index: each.kind.proposer(each, self._model_above(index).vocab_size, self.confidence[index - 1])
            for index, each in enumerate(self.levels)
            if each.kind.is_look_up
        }
        # the target takes the likeliest token of its own copy more often than that one's softmax says
        self._sharpness = [Sharpness(SHARPNESS if each.shares_cache else 1.0) for each in self.levels]

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        on_logits: Callable[[int, F32], None] | None = None,
        selection: Selection = GREEDY,
    ) -> Generation:
        """Decode until `max_new_tokens`, a stop token, or the end of the target's positions.

        Args:
            prompt: token ids, at least one.
            max_new_tokens: at least one.
            stop_tokens: ids that end the text; the one that does is part of the result.
            on_logits: called with each new token's position in the result and the target's logits that chose it.
            selection: how tokens are chosen.

        Raises:
            ModelError: no prompt, or one longer than the target's positions.
        """
        generation, request = self.begin(), Request(list(prompt), max_new_tokens, stop_tokens, selection)
        for index, (_, logits) in enumerate(self.stream(request, generation)):
            if on_logits is not None:
                on_logits(index, logits)
        return generation

    def begin(self) -> Generation:
        """An empty generation, for `stream` to fill."""
        return Generation(Trace([LevelStatistics(level.name) for level in self.levels]))

    def stream(self, request: Request, generation: Generation) -> Iterator[tuple[int, F32]]:
        """Tokens as they are decided, each with the target's logits that chose it; `generation` grows alongside.

        A consumer may stop asking at any token, and an interrupt may come at any moment: what `generation` holds then
        is whole, its ending "interrupted".

        Raises:
            ModelError: no prompt, one longer than the target's positions, or a bias on a token that the target does
                not have; at once, not when iterated.
        """
        self.check(request)
        return self.decoding(request, generation, request.acceptance()).tokens(generation)

    def decoding(
        self, request: Request, generation: Generation, acceptance: Acceptance, passes: Passes = OWN_PASSES
    ) -> Decoding:
        """A text for a caller who runs its rounds and keeps their tokens; any number may be under way.

        It goes on after the tokens of `generation` and fills its trace; `passes` evaluate its rows.
        """
        target = self.link(generation.trace.statistics, acceptance, passes, request.uses_drafts)
        return Decoding(target, request, generation)

    @property
    def target(self) -> Decoder:
        """The first level's model."""
        assert self.levels[0].decoder is not None
        return self.levels[0].decoder

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.target.config.vocab_size

    def cached_decoders(self) -> list[Decoder]:
        """The models that have caches of their own: the target, and each that shares no other's."""
        own = [level for index, level in enumerate(self.levels) if not (index and level.shares_cache)]
        return [level.decoder for level in own if level.decoder is not None]

    def reader_caches(self) -> list[KVCache]:
        """Empty caches as every text has them of drafts that read hidden states, but for those of a constant size."""
        readers = [level.reader for level in self.levels if level.reader is not None]
        return [cache for reader in readers if (cache := reader.text_cache()) is not None]

    def check(self, request: Request) -> None:
        """Raises ModelError for a prompt of no tokens, or of more than the target's positions, for no new ones, or for
        a bias on a token that the target does not have."""
        if not request.prompt:
            raise ModelError("prompt: 0 tokens; at least one is required. Give a text.")
        limit = self.target.config.max_position_embeddings
        if len(request.prompt) > limit:
            raise ModelError(
                f"prompt: {len(request.prompt)} tokens; the target has {limit} positions (max_position_embeddings). "
                "Shorten it."
            )
        if request.max_new_tokens < 1:
            raise ModelError(f"max_new_tokens: {request.max_new_tokens}; at least 1 is required.")
        request.selection.penalties.check(self.vocab_size)

    def link(
        self,
        statistics: Sequence[LevelStatistics],
        acceptance: Acceptance,
        passes: Passes = OWN_PASSES,
        uses_drafts: bool = True,
    ) -> Level:
        """The target, linked with all levels below or with none, with fresh caches for one text."""
        for each in statistics:
            each.clock = passes.clock
        session = _session(passes, self.target)
        drafts: list[Draft] = []  # below the level at hand, the next one first
        for index in reversed(range(1, len(self.levels) if uses_drafts else 1)):
            made: Draft = NullDraft(statistics[index])  # `_usable` replaces it
            if proposer := self._proposers.get(index):
                made = proposer(statistics[index], acceptance)
            elif self.levels[index].decoder is not None:
                level = self._level(index, session, statistics[index], acceptance, drafts)
                made = ModelDraft(level, self.confidence[index - 1], self._sharpness[index], self.adaptive)
            drafts.insert(0, made)
        return self._level(0, session, statistics[0], acceptance, drafts)

    def _level(
        self, index: int, session: Session, statistics: LevelStatistics, acceptance: Acceptance, below: list[Draft]
    ) -> Level:
        """A model, linked with the levels that may draft for it."""
        loaded = self.levels[index]
        assert loaded.decoder is not None
        shares = index > 0 and loaded.shares_cache
        own = session if shares or index == 0 else _session(session.passes, loaded.decoder)
        if acceptance.rules is not None and not loaded.shares_tokens(self.levels[0]):
            acceptance = copy(acceptance)
            acceptance.rules = None  # they are of other tokens
        usable = [(number, below[number - index - 1]) for number in self._drafts_of(index) if below]
        return Level(
            decoder=loaded.decoder,
            session=own,
            shares_session=shares,
            vocab_size=self._common_vocab_size(index),
            acceptance=acceptance,
            statistics=statistics,
            drafts=[self._usable(index, number, draft, own, acceptance) for number, draft in usable],
            pace=self.paces[index].of_text() if index < len(self.paces) else FixedPace(1),
        )

    def _drafts_of(self, index: int) -> list[int]:
        """The numbers of the levels that may draft for a level; for an adaptive target all.

        A draft that tried models below it would seem dear meanwhile, and gain little (docs/research/log.md).
        """
        numbers = range(index + 1, len(self.levels))
        if not self.adaptive:
            return list(numbers[:1])
        if index:
            return [number for number in numbers if self.levels[number].kind.is_look_up]
        has_models = any(self.levels[number].decoder for number in numbers)
        return [number for number in numbers if not (has_models and self.levels[number].is_below_models)]

    def _usable(self, consumer: int, index: int, draft: Draft, session: Session, acceptance: Acceptance) -> Draft:
        """A draft as a level with perhaps another tokenizer queries it, or as it reads that level."""
        level, loaded = self.levels[consumer], self.levels[index]
        if loaded.reader is not None and loaded.can_read(level):
            vocab_size = min(self._common_vocab_size(consumer), loaded.reader.sizes.vocab_size)
            confidence, sharpness = self.confidence[index - 1], self._sharpness[index]
            inputs = DraftInputs(session, acceptance, draft.statistics, vocab_size, confidence, sharpness)
            return loaded.kind.draft(loaded.reader, loaded.record, inputs)
        if level.tokenizer is None or loaded.tokenizer is None or loaded.shares_tokens(level):
            return draft
        from mxconv.speculation.through_text import ThroughText

        return ThroughText(draft, level.tokenizer, loaded.tokenizer, self._model_above(index).max_position_embeddings)

    def _estimates(self, consumer: int, grows: bool) -> list[DraftEstimate]:
        """What is expected of the drafts of a level before they were measured; trees of those that share its tokens."""
        level, found = self.levels[consumer], []
        for draft in (self.levels[number] for number in self._drafts_of(consumer)):
            price, is_branched = draft.price_in(level), draft.shares_tokens(level)
            by_depth = not (draft.kind.is_look_up and is_branched)
            of_pass, of_prompt = (USUAL_SHARE, SHARE_OF_PROMPTS) if draft.is_package_draft else (1.0, 1.0)
            share = (price * of_pass if price else USUAL_SHARE) if by_depth else 0.0
            at_once = draft.kind.drafts_at_once
            reads, has_chances = (price or 0.0) * of_prompt, is_branched and by_depth
            made = share, reads, grows and is_branched, by_depth, at_once, has_chances
            found.append(DraftEstimate(*made, is_look_up=draft.kind.is_look_up))
        return found

    def _model_above(self, index: int) -> ModelConfig:
        """The model whose tokens a level's are: itself, or for a look-up the nearest model above."""
        return next(level.decoder.config for level in self.levels[index::-1] if level.decoder is not None)

    def _common_vocab_size(self, index: int) -> int:
        """Rows that this model and all above it with the same tokenizer have."""
        same = [level for level in self.levels[: index + 1] if level.tokenizer is self.levels[index].tokenizer]
        return min(level.decoder.config.vocab_size for level in same if level.decoder is not None)


def _session(passes: Passes, decoder: Decoder) -> Session:
    return Session(passes.new_cache(decoder), passes)


def _one_each(flag: str, given: Sequence[Number] | None, defaults: list[Number]) -> list[Number]:
    """Numbers for every draft level: one for all, or one each."""
    if given is None:
        return defaults
    if len(given) == 1:
        return list(given) * len(defaults)
    if len(given) != len(defaults):
        raise ModelError(
            f"{flag}: {len(given)} numbers for {len(defaults)} draft levels; one for all, or one each, is required."
        )
    return list(given)


def _most_tokens(level: LoadedLevel) -> int:
    """The longest path that is drafted for a level."""
    return STREAMED_TOKENS if level.decoder is not None and level.decoder.reads_ahead else AUTO_TOKENS
