"""Drafts that read the hidden states of the level that asks them: which class is whose."""

from mxconv.engine.loaded_level import LoadedLevel
from mxconv.engine.readers.eagle3 import Eagle3
from mxconv.engine.readers.mtp import MtpModule
from mxconv.engine.readers.speculator import MlpSpeculator
from mxconv.engine.readers.spire import Spire
from mxconv.speculation.readers.feature_draft import FeatureDraft
from mxconv.speculation.readers.reading_draft import Listener, ReadingDraft
from mxconv.speculation.readers.speculator_draft import SpeculatorDraft
from mxconv.speculation.readers.spire_draft import SpireDraft


def reading(loaded: LoadedLevel, listener: Listener) -> ReadingDraft:
    """The draft of a level that has a reader, for one that asks it."""
    if isinstance(loaded.reader, Spire):
        return SpireDraft(loaded.reader, listener)
    if isinstance(loaded.reader, Eagle3 | MtpModule):
        return FeatureDraft(loaded.reader, listener)
    assert isinstance(loaded.reader, MlpSpeculator)
    return SpeculatorDraft(loaded.reader, listener, loaded.record.num_candidates)
