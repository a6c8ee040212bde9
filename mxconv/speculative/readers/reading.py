"""Drafts that read the hidden states of the level that asks them: which class is whose."""

from mxconv.model.loaded_level import LoadedLevel
from mxconv.model.readers.eagle3 import Eagle3
from mxconv.model.readers.mtp import MtpModule
from mxconv.model.readers.speculator import MlpSpeculator
from mxconv.model.readers.spire import Spire
from mxconv.speculative.readers.feature_draft import FeatureDraft
from mxconv.speculative.readers.reading_draft import Listener, ReadingDraft
from mxconv.speculative.readers.speculator_draft import SpeculatorDraft
from mxconv.speculative.readers.spire_draft import SpireDraft


def reading(loaded: LoadedLevel, listener: Listener) -> ReadingDraft:
    """The draft of a level that has a reader, for one that asks it."""
    if isinstance(loaded.reader, Spire):
        return SpireDraft(loaded.reader, listener)
    if isinstance(loaded.reader, Eagle3 | MtpModule):
        return FeatureDraft(loaded.reader, listener)
    assert isinstance(loaded.reader, MlpSpeculator)
    return SpeculatorDraft(loaded.reader, listener, loaded.record.num_candidates)
