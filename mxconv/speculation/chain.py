"""From loaded levels to levels that decode: fresh caches for a run, each level linked to the cheaper ones."""

from collections.abc import Sequence
from copy import copy
from itertools import pairwise

from mxconv.arch.config import ModelConfig
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.adaptive_pace import USUAL_SHARE, AdaptivePace
from mxconv.speculation.guesses import Sharpness
from mxconv.speculation.loaded_level import Listener, LoadedLevel, Proposer
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.pace import FixedPace, Pace
from mxconv.speculation.passes import AT_ONCE, Passes
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.reader import Reader
from mxconv.speculation.round import Level
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.through_text import ThroughText


class Silent(Draft):
    """A draft that proposes nothing, with the statistics of the level that it represents."""

    def __init__(self, statistics: LevelStatistics) -> None:
        self.statistics = statistics

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        return Proposal([])


def num_models(levels: Sequence[LoadedLevel]) -> int:
    """The target and what drafts by a pass of its own; the others are look-ups."""
    return sum(not level.kind.is_look_up for level in levels)


def growers(levels: Sequence[LoadedLevel], consumer: int) -> dict[int, bool]:
    """The drafts that grow trees for a level, the next one being 0, and whether each is a model."""
    drafts = enumerate(levels[consumer + 1 :])
    return {number: not draft.kind.is_look_up for number, draft in drafts if _speak_alike(levels[consumer], draft)}


def at_once(levels: Sequence[LoadedLevel], consumer: int) -> set[int]:
    """The drafts for a level, the next one being 0, that make a whole proposal in one pass."""
    drafts = enumerate(levels[consumer + 1 : num_models(levels)])
    return {number for number, draft in drafts if draft.kind.drafts_at_once}


def reads(levels: Sequence[LoadedLevel], consumer: int) -> dict[int, float]:
    """The expected price of a pass of each model that drafts for a level, the next one being 0, in passes of the level.

    Of another model by its weights, of a 4-bit copy the usual share. It is 0 for those that share a cache: what the
    level has read they need not read.
    """
    level, shares = levels[consumer].decoder, {}
    for number, draft in enumerate(levels[consumer + 1 : num_models(levels)]):
        if level is not None and draft.decoder is not None:
            shares[number] = 0.0 if draft.shares_cache else USUAL_SHARE
            if draft.record.kind == "model" and not draft.shares_cache:
                shares[number] = _num_weights(draft.decoder) / _num_weights(level)
    return shares


def _num_weights(decoder: Decoder) -> int:
    """The number of weights that a pass over one row multiplies."""
    matrices = [decoder.head, *(matrix for layer in decoder.layers for matrix in layer.mixer.matrices)]
    mlps = (layer.mlp for layer in decoder.layers if layer.mlp is not None)
    return sum(matrix.shape[0] * matrix.shape[1] for matrix in matrices) + sum(mlp.num_weights for mlp in mlps)


def _speak_alike(level: LoadedLevel, draft: LoadedLevel) -> bool:
    """Whether the tokens of both are the same; otherwise proposals go through text, which has no branches."""
    return level.tokenizer is None or draft.tokenizer is None or level.tokenizer is draft.tokenizer


class Chain:
    """The levels of a hierarchy, and what of them outlives a run.

    Args:
        levels: the target first.
        paces: of each level that has a draft. One that chooses between drafts is given all cheaper levels.
        confidence: of each level below the target.

    Raises:
        ModelError: the target is no model, a level that is none has a model below it, a draft that reads hidden states
            is below a model that it cannot read and that asks nobody else, or a draft whose parts change has a
            cache of its own.
    """

    def __init__(self, levels: Sequence[LoadedLevel], paces: Sequence[Pace], confidence: Sequence[float]) -> None:
        for level, below in pairwise(levels):
            if level.decoder is None and below.decoder is not None:
                what, order = "a look-up", "look-ups last"
                if level.reader is not None:
                    what, order = "no model that can be read or asked", "it after the models"
                raise ModelError(
                    f"hierarchy: level {level.name} is {what}, and {below.name} is below it; "
                    f"only a model can use a draft. Put {order}."
                )
            if level.kind.is_look_up and not (paces and isinstance(paces[-1], AdaptivePace)):
                raise ModelError(
                    f"hierarchy: level {below.name} is below the look-up {level.name}, and with lengths that are given "
                    "nobody asks it. Leave it out, or use --num-draft-tokens auto."
                )
        target = levels[0].decoder
        if target is None:
            raise ModelError(f"hierarchy: {levels[0].name} is no model; the first level must be one. Name the target.")
        self._levels, self._paces, self._confidence = levels, paces, confidence
        self._proposers = {index: self._proposer(index) for index, each in enumerate(levels) if each.kind.is_look_up}
        for index, level in enumerate(levels):
            is_asked_alone = index > 0 and not (index <= len(paces) and isinstance(paces[index - 1], AdaptivePace))
            if level.reader is not None and is_asked_alone and not self._can_read(index - 1, level.reader, index):
                raise ModelError(
                    f"hierarchy: level {level.name} reads hidden states of {level.reader.sizes.hidden_size} numbers of "
                    f"the target's tokens, and {levels[index - 1].name} above it has none; with lengths that are given "
                    f"it asks nobody else. Put it after the level that it reads, or use --num-draft-tokens auto."
                )
        self._variants = {
            index: variants
            for index, each in enumerate(levels)
            if each.decoder is not None and (variants := each.kind.varied(each, target))
        }
        self._sharpness = [Sharpness() for _ in levels]

    def link(
        self,
        statistics: Sequence[LevelStatistics],
        acceptance: Acceptance,
        passes: Passes = AT_ONCE,
        uses_drafts: bool = True,
    ) -> Level:
        """The target, linked with all levels below or with none, for one text; several may be decoded side by side."""
        for each in statistics:
            each.clock = lambda: passes.meter().seconds
        assert self._levels[0].decoder is not None
        session = _session(passes, self._levels[0].decoder)
        drafts: list[Draft] = []  # below the level at hand, the next one first
        for index in reversed(range(1, len(self._levels) if uses_drafts else 1)):
            if proposer := self._proposers.get(index):
                made: Draft = proposer(statistics[index], acceptance)
            elif self._levels[index].decoder is None:
                made = Silent(statistics[index])  # it reads hidden states, of which level is not known yet
            else:
                level = self._level(index, session, statistics[index], acceptance, drafts)
                made = ModelDraft(level, self._confidence[index - 1], self._sharpness[index])
                if variants := self._variants.get(index):
                    made = variants.of_text(made)
            drafts.insert(0, made)
        return self._level(0, session, statistics[0], acceptance, drafts)

    def _level(
        self, index: int, session: Session, statistics: LevelStatistics, acceptance: Acceptance, below: list[Draft]
    ) -> Level:
        """A model, linked with the levels below it."""
        loaded = self._levels[index]
        assert loaded.decoder is not None
        shares = index > 0 and loaded.shares_cache
        pace = self._paces[index].of_text() if index < len(self._paces) else FixedPace(1)
        own = session if shares or index == 0 else _session(session.passes, loaded.decoder)
        if acceptance.rules is not None and not _speak_alike(self._levels[0], loaded):
            acceptance = copy(acceptance)
            acceptance.rules = None  # they are of other tokens
        usable = enumerate(below if isinstance(pace, AdaptivePace) else below[:1], index + 1)
        drafts = [self._usable(index, number, draft, own, acceptance) for number, draft in usable]
        return Level(
            decoder=loaded.decoder,
            session=own,
            shares_session=shares,
            vocab_size=self._common_vocab_size(index),
            acceptance=acceptance,
            statistics=statistics,
            drafts=drafts,
            pace=pace,
        )

    def _proposer(self, index: int) -> Proposer:
        """What makes the drafts of a look-up, one a text."""
        loaded = self._levels[index]
        return loaded.kind.proposer(loaded, self._speaker(index).vocab_size, self._confidence[index - 1])

    def _usable(self, consumer: int, index: int, draft: Draft, session: Session, acceptance: Acceptance) -> Draft:
        """A draft as a level with perhaps another tokenizer asks it, or as it reads that level."""
        loaded = self._levels[index]
        if loaded.reader is not None and self._can_read(consumer, loaded.reader, index):
            vocab_size = min(self._common_vocab_size(consumer), loaded.reader.sizes.vocab_size)
            confidence, sharpness = self._confidence[index - 1], self._sharpness[index]
            listener = Listener(session, acceptance, draft.statistics, vocab_size, confidence, sharpness)
            return loaded.kind.draft(loaded.reader, loaded.record, listener)
        ours, theirs = self._levels[consumer].tokenizer, loaded.tokenizer
        if ours is None or theirs is None or _speak_alike(self._levels[consumer], loaded):
            return draft
        return ThroughText(draft, ours, theirs, self._speaker(index).max_position_embeddings)

    def _can_read(self, consumer: int, reader: Reader, index: int) -> bool:
        """Whether a level computes the states that a draft reads."""
        decoder = self._levels[consumer].decoder
        return (
            decoder is not None
            and decoder.config.hidden_size == reader.sizes.hidden_size
            and decoder.config.num_hidden_layers >= reader.sizes.least_layers
            and self._levels[consumer].tokenizer is self._levels[index].tokenizer
        )

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


def _session(passes: Passes, decoder: Decoder) -> Session:
    return Session(passes.new_cache(decoder), passes)
