"""A level of a run as it was loaded."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.drafts.readers.reader import Reader
from mxconv.engine.decoder import Decoder
from mxconv.package.level_record import LevelRecord
from mxconv.package.ngram_table import NgramTable
from mxconv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedLevel:
    """A level that can decode or draft; `record` says how."""

    record: LevelRecord
    decoder: Decoder | None  # a look-up has none, nor has what reads another's states
    tokenizer: Tokenizer | None = None  # whose tokens it speaks: the very object of another level, or one of its own
    table: NgramTable | None = None
    folder: Path | None = None  # of a model that is not the package's own
    reader: Reader | None = None  # what drafts from another level's hidden states

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def shares_cache(self) -> bool:
        return "kv_cache" in self.record.shares
