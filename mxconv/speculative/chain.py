"""From loaded levels to levels that decode: fresh caches for a run, each level linked to the cheaper ones."""

from collections.abc import Sequence

from mxconv.errors import ModelError
from mxconv.model.cache import KVCache
from mxconv.model.config import ModelConfig
from mxconv.model.loader import LoadedLevel
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.adaptive_pace import AdaptivePace
from mxconv.speculative.draft import Draft
from mxconv.speculative.level import Level
from mxconv.speculative.ngram import NgramDraft
from mxconv.speculative.pace import FixedPace, Pace
from mxconv.speculative.prompt_lookup import PromptLookup
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics
from mxconv.speculative.through_text import ThroughText
from mxconv.speculative.token_recycling import TokenRecycling
from mxconv.speculative.variant_draft import VARIANT_KINDS, VariantDraft, Variants

TREE_KINDS = frozenset({"token-recycling", "prompt-lookup", "ngram"})  # of drafts that grow trees


class Chain:
    """The levels of a hierarchy, and what of them outlives a run.

    Args:
        levels: the target first.
        paces: of each level that has a draft. One that chooses between drafts is given all cheaper levels.
        confidence: of each level below the target.

    Raises:
        ModelError: the target is no model, a level that is none has another below it, or a draft whose parts change
            has a cache of its own.
    """

    def __init__(self, levels: Sequence[LoadedLevel], paces: Sequence[Pace], confidence: Sequence[float]) -> None:
        for index, level in enumerate(levels):
            if level.decoder is None and index < len(levels) - 1:
                raise ModelError(
                    f"hierarchy: level {level.name} is a look-up, and {levels[index + 1].name} stands below it; "
                    "only a model can use a draft. Put look-ups last."
                )
        if levels[0].decoder is None:
            raise ModelError(f"hierarchy: {levels[0].name} is no model; the first level must be one. Name the target.")
        self._levels = levels
        self._paces = paces
        self._confidence = confidence
        self._tables = {
            index: TokenRecycling(
                LevelStatistics(level.name),
                self._speaker(index).vocab_size,
                level.record.num_candidates or 8,
                confidence[index - 1],
            )
            for index, level in enumerate(levels)
            if level.record.kind == "token-recycling"
        }
        self._variants = {
            index: Variants(level, levels[0].decoder)
            for index, level in enumerate(levels)
            if level.record.kind in VARIANT_KINDS
        }

    def link(self, statistics: Sequence[LevelStatistics], acceptance: Acceptance) -> Level:
        """The target, linked with all levels below, for one run."""
        assert self._levels[0].decoder is not None
        session = Session(KVCache(self._levels[0].decoder.config))
        drafts: list[Draft] = []  # below the level at hand, the next one first
        for index in reversed(range(len(self._levels))):
            made = self._make(index, session, statistics[index], acceptance, drafts)
            drafts.insert(0, made)
        target = drafts[0]
        assert isinstance(target, Level)
        return target

    def _make(
        self,
        index: int,
        session: Session,
        statistics: LevelStatistics,
        acceptance: Acceptance,
        below: list[Draft],
    ) -> Draft:
        loaded = self._levels[index]
        confidence = self._confidence[index - 1] if index else 0.0
        if loaded.record.kind == "prompt-lookup":
            return PromptLookup(statistics, loaded.record.max_ngram or 3)
        if loaded.record.kind == "token-recycling":
            self._tables[index].statistics = statistics
            return self._tables[index]
        if loaded.table is not None:
            return NgramDraft(statistics, loaded.table, confidence)
        assert loaded.decoder is not None
        shares = index > 0 and loaded.shares_cache
        pace = self._paces[index] if index < len(self._paces) else FixedPace(1)
        usable = below if isinstance(pace, AdaptivePace) else below[:1]
        level = Level(
            decoder=loaded.decoder,
            session=session if shares or index == 0 else Session(KVCache(loaded.decoder.config)),
            shares_session=shares,
            vocab_size=self._common_vocab_size(index),
            confidence=confidence,
            acceptance=acceptance,
            statistics=statistics,
            drafts=[self._heard_by(index, index + 1 + number, draft) for number, draft in enumerate(usable)],
            pace=pace,
        )
        return VariantDraft(level, self._variants[index]) if index in self._variants else level

    def _heard_by(self, consumer: int, index: int, draft: Draft) -> Draft:
        """A draft as a level with perhaps another tokenizer asks it."""
        ours, theirs = self._levels[consumer].tokenizer, self._levels[index].tokenizer
        if ours is theirs or ours is None or theirs is None:
            return draft
        return ThroughText(draft, ours, theirs, draft.statistics, self._speaker(index).max_position_embeddings)

    def _speaker(self, index: int) -> ModelConfig:
        """The model whose tokens a level's are: itself, or for a look-up the nearest model above."""
        return next(level.decoder.config for level in self._levels[index::-1] if level.decoder is not None)

    def _common_vocab_size(self, index: int) -> int:
        """Rows that this model and all above it with the same tokenizer have."""
        tokenizer = self._levels[index].tokenizer
        return min(
            level.decoder.config.vocab_size
            for level in self._levels[: index + 1]
            if level.tokenizer is tokenizer and level.decoder is not None
        )
