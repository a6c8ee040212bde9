"""A draft made of the target's own weights, whose parts are chosen while it decodes."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance
from mxconv.drafts.draft_price import DraftPrice
from mxconv.drafts.guesses import Sharpness
from mxconv.drafts.pass_cost import PartBytes
from mxconv.drafts.proposal import Proposal, TreeDraft
from mxconv.drafts.session import Session
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.studies import Rehearsal, StudyBudget
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord

MOST_VARIANTS = 16  # that are kept ready


class ModelDraft(TreeDraft, Protocol):
    """A draft that is a model with a cache, whose decoder can be exchanged for a variant of it."""

    @property
    def session(self) -> Session: ...

    @property
    def acceptance(self) -> Acceptance: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def sharpness(self) -> Sharpness: ...

    def with_decoder(self, decoder: Decoder) -> "ModelDraft":
        """The same draft with another decoder."""
        ...


class VariantChoice(Protocol):
    """Which parts to leave out. What it learns outlives a text."""

    price: DraftPrice
    num_studies: int

    def choose(self, most: int) -> tuple[Skipped, int]:
        """For the next proposal: the parts to leave out, and how many tokens to propose, at most `most`."""
        ...

    def to_study(self) -> Skipped | None:
        """Of which set it should be known how often it agrees; None: it is content."""
        ...

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        """What a study found."""
        ...

    def judged(self, num_accepted: int, num_judged: int) -> None:
        """What became of a proposal: tokens accepted, and those whose predecessors all were."""
        ...


ChoiceOf = Callable[[DraftPrice, int], VariantChoice]  # of a price and the number of the target's layers


class Variants:
    """What a draft of this kind keeps from text to text: its choice, and the account of its studies.

    Args:
        record: of a level whose parts are chosen while it decodes.
        target: whose parts are left out.
        choice: what makes the choice.

    Raises:
        ModelError: the level does not share the target's cache, or the target has too few layers.
    """

    def __init__(self, record: LevelRecord, target: Decoder, choice: ChoiceOf) -> None:
        if "kv_cache" not in record.shares:
            raise ModelError(
                f"level {record.name}: {record.kind} with a cache of its own; its layers change, so it must read "
                "the target's keys and values. Leave it out, or use layer-skip, where the target's are out of reach."
            )
        self.choice = choice(DraftPrice(PartBytes.of(target)), target.config.num_hidden_layers)
        self.budget = StudyBudget()
        self.decoder = lru_cache(MOST_VARIANTS)(lambda skipped: target.variant(skipped, name=record.name))

    def of_text(self, level: ModelDraft) -> "VariantDraft":
        """The draft of one text."""
        return VariantDraft(level, self)


class VariantDraft:
    """A level whose decoder is another variant of the target from round to round.

    Between rounds it may study: a pass of some variant over the last tokens of the text, on the shared cache, which is
    left as it was. Studies count and are timed as this level's own forward passes.

    Args:
        level: with any decoder; it shares the target's session.
        variants: what outlives this text.
    """

    def __init__(self, level: ModelDraft, variants: Variants) -> None:
        self._level = level
        self._variants = variants
        self._first_written: int | None = None
        self._last: tuple[Skipped, int, float] | None = None  # of the proposal that is being verified
        self._proposed_at = 0.0
        self._counted = 0, 0
        self._last_end: float | None = None  # of a round of this text
        self._studied_since = 0.0

    @property
    def statistics(self) -> LevelStatistics:
        return self._level.statistics

    @property
    def sharpness(self) -> Sharpness:
        return self._level.sharpness

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """What the level proposes, by the variant of this round; perhaps a study first."""
        level, skipped, wanted = self._level_of_this_round(context, num_tokens)
        begin = self._now()
        # who sets a floor has chosen the length by what this draft brings
        proposal = level.propose(context, wanted if floor is None else num_tokens, floor)
        return self._proposed(skipped, proposal, begin)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """What the level grows, likewise."""
        level, skipped, wanted = self._level_of_this_round(context, most_depth)
        begin = self._now()
        proposal = level.grow(context, wanted if floor is None else most_depth, floors, floor)
        return self._proposed(skipped, proposal, begin)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """The level above has verified something, perhaps another draft's."""
        now = self._now()
        if self._last_end is not None:
            self._variants.budget.pay(max(now - self._last_end - self._studied_since, 0.0))
        self._last_end, self._studied_since = now, 0.0
        if self._last is not None:
            self._variants.choice.price.learn(*self._last, now - self._proposed_at)
            self._last = None

    def _level_of_this_round(self, context: Sequence[int], num_tokens: int) -> tuple[ModelDraft, Skipped, int]:
        """The level with its decoder of this round, what that leaves out, and how many tokens it should propose."""
        if self._first_written is None:
            self._first_written = len(context) - 1  # the level above has chosen one token behind the prompt
        self._tell_judged()
        self._study(context)
        skipped, wanted = self._variants.choice.choose(num_tokens)
        return self._level.with_decoder(self._variants.decoder(skipped)), skipped, wanted

    def _proposed(self, skipped: Skipped, proposal: Proposal, begin: float) -> Proposal:
        self._proposed_at = self._now()
        self._last = skipped, proposal.depth, self._proposed_at - begin
        return proposal

    def _now(self) -> float:
        """Of the text's own clock, in seconds."""
        return self._level.session.passes.meter().seconds

    def _tell_judged(self) -> None:
        """What the level above has counted since."""
        now = self.statistics.num_accepted, self.statistics.num_judged
        accepted, judged = (count - before for count, before in zip(now, self._counted, strict=True))
        self._counted = now
        if judged:
            self._variants.choice.judged(accepted, judged)

    def _study(self, context: Sequence[int]) -> None:
        assert self._first_written is not None
        budget, choice, level = self._variants.budget, self._variants.choice, self._level
        text = Rehearsal.of(level.session, context, self._first_written) if budget.allows else None
        if text is None:
            return
        begin = self._now()
        skipped = choice.to_study()
        if skipped is None:
            return
        agreed = text.agreed(self._variants.decoder(skipped), level.acceptance, level.vocab_size)
        choice.learn(skipped, agreed, text.num_tokens)
        seconds = self._now() - begin
        budget.spend(seconds)
        self._studied_since += seconds
        self.statistics.num_forwards += 1
        self.statistics.seconds += seconds
