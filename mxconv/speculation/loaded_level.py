"""A level that was loaded, and what a hierarchy asks of its kind: the draft of one text."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mxconv.engine.decoder import Decoder
from mxconv.package.level_record import LevelRecord
from mxconv.package.ngram_table import NgramTable
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.guesses import Sharpness
from mxconv.speculation.proposal import Draft
from mxconv.speculation.reader import Reader
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.tokenizer import Tokenizer

DEFAULT_NUM_DRAFT_TOKENS = 8  # of BSFP too, where SPEQ has 16: docs/drafts.md says why
DEFAULT_CONFIDENCE = 0.4
Proposer = Callable[[LevelStatistics, Acceptance], Draft]


@dataclass(frozen=True)
class Listener:
    """The level that a draft reads and drafts for, and the rules of the run.

    Args:
        session: of the level, which keeps its states.
        acceptance: the rule of the run.
        statistics: of the draft; every pass counts.
        vocab_size: ids that both levels have.
        confidence: where no floor is given, a chain stops after the first token that is less probable, a tree before a
            pass none of whose nodes is as probable.
        sharpness: of the draft's guesses.
    """

    session: Session
    acceptance: Acceptance
    statistics: LevelStatistics
    vocab_size: int
    confidence: float
    sharpness: Sharpness


class DraftMaker(Protocol):
    """Makes the draft of each text, and keeps what outlives a text."""

    def of_text(self, level: Any) -> Draft:
        """The draft of one text, around the level that decodes for it."""


class LevelKind:
    """A kind of level, as a hierarchy uses it; a kind of draft overrides what differs from these defaults."""

    is_look_up = False  # it has no model
    drafts_at_once = False  # one pass makes a whole proposal

    def proposer(self, loaded: "LoadedLevel", vocab_size: int, confidence: float) -> Proposer:
        """Makes the draft of each text of a look-up; tables that it fills while decoding are shared by all texts.

        `vocab_size` is that of the model above; below `confidence` a chain stops.
        """
        raise NotImplementedError

    def draft(self, reader: Any, record: LevelRecord, listener: Listener) -> Draft:
        """The draft for one text of a level that the network, a reader of this kind, can read."""
        raise NotImplementedError

    def varied(self, loaded: "LoadedLevel", target: Decoder) -> DraftMaker | None:
        """What makes the drafts of texts around a model whose parts change while it decodes; None of others."""
        return None


MODEL = LevelKind()


@dataclass(frozen=True)
class LoadedLevel:
    """A level that can decode or draft."""

    record: LevelRecord
    decoder: Decoder | None  # None for look-ups and readers
    tokenizer: Tokenizer | None = None  # the very object of another level, or one of its own
    table: NgramTable | None = None
    folder: Path | None = None  # of a model that is not the package's own; the file of a 2-bit draft
    reader: Reader | None = None
    kind: LevelKind = MODEL

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def shares_cache(self) -> bool:
        return "kv_cache" in self.record.shares
