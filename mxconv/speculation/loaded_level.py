"""A level that was loaded, and what a hierarchy needs of its kind: the draft of one text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.proposal import Draft, Sharpness
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mxconv.speculation.reader import Reader

USUAL_SHARE = 0.35  # of a plain pass: the price of a draft token until it was measured, that of a 4-bit copy
SHARE_OF_PROMPTS = 0.5  # the price of reading a prompt with weights in 4 bits, in that of reading it with 16
Proposer = Callable[[LevelStatistics, Acceptance], Draft]


@dataclass(frozen=True)
class DraftInputs:
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

    def has_states_of(self, context: Sequence[int], vocab_size: int) -> bool:
        """Whether there are states for all tokens but the last, one at least, each of a reader's vocabulary."""
        return len(context) > 1 and max(context) < vocab_size and self.session.holds(context)


class LevelKind:
    """A kind of level, as a hierarchy uses it; a kind of draft overrides what differs from these defaults."""

    is_look_up = False  # it has no model
    is_reader = False  # it reads hidden states of another level
    drafts_at_once = False  # one pass makes a whole proposal

    def proposer(self, loaded: "LoadedLevel", vocab_size: int, confidence: float) -> Proposer:
        """Makes the draft of each text of a look-up; tables that it fills while decoding are shared by all texts.

        `vocab_size` is that of the model above; below `confidence` a chain stops.
        """
        raise NotImplementedError

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> Draft:
        """The draft for one text of a level that the network, a reader of this kind, can read."""
        raise NotImplementedError


MODEL = LevelKind()


@dataclass(frozen=True)
class LoadedLevel:
    """A level that can decode or draft."""

    record: LevelRecord
    decoder: Decoder | None  # None for look-ups and readers
    tokenizer: Tokenizer | None = None  # the very object of another level, or one of its own
    table: Any = None  # of a look-up that has one, as its kind reads it
    folder: Path | None = None  # of a model that is not the package's own
    reader: "Reader | None" = None
    kind: LevelKind = MODEL
    is_below_models: bool = False  # an adaptive target asks it only where no other draft has a model

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def shares_cache(self) -> bool:
        return "kv_cache" in self.record.shares

    @property
    def is_package_draft(self) -> bool:
        """Whether it is the 4-bit draft of another package."""
        return self.record.codec == "package" and self.record.level != "target"

    @property
    def num_weights(self) -> int:
        """The number of weights that a pass over one row multiplies."""
        assert self.decoder is not None, "a model"
        rows, columns = self.decoder.head.shape
        return rows * columns + num_layer_weights(self.decoder)

    def shares_tokens(self, level: "LoadedLevel") -> bool:
        """Whether the tokens of both are the same; otherwise proposals go through text, which has no branches."""
        return level.tokenizer is None or self.tokenizer is None or level.tokenizer is self.tokenizer

    def can_read(self, level: "LoadedLevel") -> bool:
        """Whether another level computes the hidden states that this one reads."""
        assert self.reader is not None, "it reads hidden states"
        return (
            level.decoder is not None
            and level.decoder.config.hidden_size == self.reader.sizes.hidden_size
            and level.decoder.config.num_hidden_layers >= self.reader.sizes.least_layers
            and level.tokenizer is self.tokenizer
        )

    def price_in(self, level: "LoadedLevel") -> float | None:
        """The expected price of a pass in passes of another level, None of what is no model beside one.

        Of another model by its weights, of a 4-bit copy the usual share. It is 0 for those that share a cache: what the
        level has read they need not read.
        """
        if level.decoder is None or self.decoder is None:
            return None
        if self.shares_cache:
            return 0.0
        return self.num_weights / level.num_weights if self.record.kind == "model" else USUAL_SHARE


def num_layer_weights(decoder: Decoder, every_expert: bool = False) -> int:
    """The number of weights in the matrices of a decoder's layers; of experts those of one row, or every one."""
    matrices = [matrix for layer in decoder.layers for matrix in layer.mixer.matrices]
    mlps = [layer.mlp for layer in decoder.layers if layer.mlp is not None]
    in_mlps = sum(mlp.num_stored_weights if every_expert else mlp.num_weights for mlp in mlps)
    return in_mlps + sum(matrix.shape[0] * matrix.shape[1] for matrix in matrices)


def check_order(levels: Sequence[LoadedLevel], is_adaptive: bool) -> None:
    """Raises ModelError for levels that cannot draft for each other in this order; of adaptive ones some more can."""
    for level, below in pairwise(levels):
        if level.decoder is None and below.decoder is not None:
            what, order = "a look-up", "look-ups last"
            if level.reader is not None:
                what, order = "no model that can be read or queried", "it after the models"
            raise ModelError(
                f"hierarchy: level {level.name} is {what}, and {below.name} is below it; "
                f"only a model can use a draft. Put {order}."
            )
        if level.kind.is_look_up and not is_adaptive:
            raise ModelError(
                f"hierarchy: level {below.name} is below the look-up {level.name}, and with lengths that are given "
                "no level queries it. Leave it out, or use --num-draft-tokens auto."
            )
        if below.reader is not None and not is_adaptive and not below.can_read(level):
            raise ModelError(
                f"hierarchy: level {below.name} reads hidden states of {below.reader.sizes.hidden_size} numbers of "
                f"the target's tokens, and {level.name} above it has none; with lengths that are given no "
                "other level queries it. Put it after the level that it reads, or use --num-draft-tokens auto."
            )
    if levels[0].decoder is None:
        raise ModelError(f"hierarchy: {levels[0].name} is no model; the first level must be one. Name the target.")
