"""Drafts that read the hidden states of the level that asks them: which class is whose."""

from mxconv.drafts.loaded_level import LoadedLevel
from mxconv.drafts.readers.eagle3_head import Eagle3
from mxconv.drafts.readers.feature_draft import FeatureDraft
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator
from mxconv.drafts.readers.mtp_module import MtpModule
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.readers.speculator_draft import SpeculatorDraft
from mxconv.drafts.readers.spire_draft import SpireDraft
from mxconv.drafts.readers.spire_layers import Spire


def reading(loaded: LoadedLevel, listener: Listener) -> ReadingDraft:
    """The draft of a level that has a reader, for one that asks it."""
    if isinstance(loaded.reader, Spire):
        return SpireDraft(loaded.reader, listener)
    if isinstance(loaded.reader, Eagle3 | MtpModule):
        return FeatureDraft(loaded.reader, listener)
    assert isinstance(loaded.reader, MlpSpeculator)
    return SpeculatorDraft(loaded.reader, listener, loaded.record.num_candidates)
