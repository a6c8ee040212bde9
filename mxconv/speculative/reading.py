"""Drafts that read the hidden states of the level that asks them: which class is whose."""

from mxconv.model.loader import LoadedLevel
from mxconv.model.readers.eagle3 import Eagle3
from mxconv.model.readers.speculator import MlpSpeculator
from mxconv.model.readers.spire import Spire
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.draft import Draft
from mxconv.speculative.eagle3_draft import Eagle3Draft
from mxconv.speculative.session import Session
from mxconv.speculative.speculator_draft import SpeculatorDraft
from mxconv.speculative.spire_draft import SpireDraft
from mxconv.speculative.statistics import LevelStatistics


def reading(
    loaded: LoadedLevel,
    session: Session,
    acceptance: Acceptance,
    statistics: LevelStatistics,
    vocab_size: int,
    confidence: float,
) -> Draft:
    """The draft of a level, for one that asks it.

    Args:
        loaded: with a reader.
        session: of the level that asks; the states that are read are kept there from now on.
        acceptance: the rule of the run.
        statistics: of the draft.
        vocab_size: ids that both levels have.
        confidence: as `Level` takes it.
    """
    if isinstance(loaded.reader, Spire):
        return SpireDraft(loaded.reader, session, acceptance, statistics, vocab_size, confidence)
    if isinstance(loaded.reader, Eagle3):
        return Eagle3Draft(loaded.reader, session, acceptance, statistics, vocab_size, confidence)
    assert isinstance(loaded.reader, MlpSpeculator)
    return SpeculatorDraft(
        loaded.reader, session, acceptance, statistics, vocab_size, confidence, loaded.record.num_candidates
    )
