"""An EAGLE-3 draft head, in the format of the `speculators` package: `eagle3:PATH_OR_ID`.

Its network is `mxconv/drafts/readers/eagle3_head.py`. The embedding is the target's own.
"""

from contextlib import ExitStack
from pathlib import Path

from mxconv.drafts.kind import DraftSpec, LoadedLevel, OpenedDraft, OpenTarget
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.eagle3_head import Eagle3, target_tokens, with_embedding
from mxconv.drafts.readers.feature_draft import FeatureDraft
from mxconv.drafts.readers.reader import Reader, ReaderSizes
from mxconv.drafts.readers.reading_draft import Listener
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.package.level_record import LevelRecord


class Eagle3Kind(ReaderKind):
    """A head that may know only some of the target's tokens."""

    name = "eagle3"
    other_dtypes = ("I64", "I32", "BOOL")  # of the tables of its vocabulary

    def sizes(self, path: Path) -> ReaderSizes:
        return Eagle3Config.from_file(path)

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        draft = super().open(spec, target)
        if target.config is not None and draft.root is not None:
            Eagle3Config.from_file(draft.root / "config.json").layers_of(target.config.num_hidden_layers)
        return draft

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Eagle3:
        assert target is not None, "its head takes the target's embedding"
        config = Eagle3Config.from_file(folder / "config.json")
        layers = config.layers_of(target.config.num_hidden_layers)
        weights, tensors = reader_weights(folder, record, make, stack)
        tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
        return Eagle3(config, with_embedding(weights, target.embedding), tokens, layers, record.name)

    def draft(self, loaded: LoadedLevel, listener: Listener) -> FeatureDraft:
        assert isinstance(loaded.reader, Eagle3)
        return FeatureDraft(loaded.reader, listener)

    def new_cache(self, reader: Reader) -> KVCache:
        assert isinstance(reader, Eagle3)
        return reader.new_cache()


EAGLE3 = Eagle3Kind()
