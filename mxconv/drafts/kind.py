"""What a kind of draft is: the text that names it, its level in the manifest, and how that is loaded and drafts.

    name[:SUBJECT][,key=value ...]        as in --draft ngram:TABLE,confidence=0.3

Every kind is an object in a file of this room, and a line of `mxconv/drafts/kinds.py`. It loads a decoder, which
can use drafts itself, or is a `ReaderKind` (it reads hidden states of the level above) or a `LookUpKind` (no model).
"""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_values
from mxconv.checkpoint.tokenizer_files import Vocabulary
from mxconv.drafts.pass_cost import PassCost
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import OwnWeights
from mxconv.engine.tree import TreeLimits
from mxconv.errors import PackageError
from mxconv.package.level_record import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS, LevelRecord, PlainRecord, Shared
from mxconv.package.package import Package
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.loaded_level import LevelKind, LoadedLevel
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import State, grow_best_first
from mxconv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mxconv.checkpoint.source import Checkpoint

DEFAULT_FOREIGN_CONFIDENCE = 0.65  # of a model with another tokenizer
LevelCodec = Literal["bf16", "f16", "bsfp", "mxfp4", "package"]
Value = int | float | str


@dataclass(frozen=True)
class Parameter:
    """A parameter of a SPEC: a number in a range, one of some words or numbers, or any text."""

    name: str
    low: float = 0
    high: float = 1
    is_whole: bool = True
    choices: tuple[Value, ...] = ()
    text: str = ""  # what an arbitrary text names; empty where the parameter is none
    default: Value | None = None

    def parse(self, value: str) -> Value:
        """The value of `name=value`.

        Raises:
            ValueError: it is not allowed, with what is required.
        """
        required = " or ".join(map(str, self.choices))
        if self.text:
            if not value:
                raise ValueError(f"{self.name} has no name; that of {self.text} is required.")
            return value
        if self.choices and isinstance(self.choices[0], str):
            if value not in self.choices:
                raise ValueError(f"{self.name} is {value!r}; {required} is required.")
            return value
        try:
            number = int(value) if self.is_whole else float(value)
        except ValueError as error:
            raise ValueError(f"{self.name} is {value!r}; a number is required.") from error
        if self.choices and number not in self.choices:
            raise ValueError(f"{self.name} is {value}; {required} is required.")
        if not self.choices and not self.low <= number <= self.high:
            raise ValueError(f"{self.name} is {value}; {self.low:g} to {self.high:.0f} is required.")
        return number


COMMON = (Parameter("num_draft_tokens", 1, 64), Parameter("confidence", is_whole=False))
CACHE = Parameter("cache", choices=("shared", "own"))
NUM_CANDIDATES = Parameter("num_candidates", 1, 64, default=8)


@dataclass(frozen=True)
class DraftSpec:
    """One `--draft`. None, or an absent parameter, is the default of the kind."""

    kind: str
    subject: str = ""
    num_draft_tokens: int | None = None
    confidence: float | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenedDraft:
    """A draft that a package will hold, or that is loaded beside one."""

    spec: DraftSpec
    name: str  # of the level
    root: Path | None = None  # the folder of its files, or the one file of a draft beside a package
    files: tuple[Path, ...] = ()  # relative to `root`
    codec: LevelCodec | None = None  # of a model's weights
    same_tokenizer: bool = True  # a model has the vocabulary of the level above


@dataclass
class OpenTarget:
    """The checkpoint whose package is to hold drafts, and the level above the next draft."""

    checkpoint: "Checkpoint"
    vocabulary: Vocabulary  # of the level above
    tokenizer_sha256: str  # of that level's tokenizer.json; empty where there is none

    @property
    def config(self) -> ModelConfig | None:
        """The target's sizes; None where it has no config.json."""
        return None if self.checkpoint.config is None else describe_values(self.checkpoint.config)


class Run(Protocol):
    """The levels that are loaded already, the target first, and what a further one is loaded with."""

    package: Package
    own: OwnWeights
    matrices: Matrices
    stack: ExitStack
    levels: list[LoadedLevel]
    is_draft: bool  # whether all of them draft for another package's target
    tokenizer: Tokenizer
    target_vocabulary: Vocabulary
    vocabulary: Vocabulary  # of the last level that was loaded

    @property
    def target(self) -> Decoder: ...

    def nested(self, folder: Path, level: str) -> Decoder:
        """The decoder of one level of another package."""
        ...


class DraftKind(LevelKind):
    """A kind of draft, which overrides what differs from these defaults."""

    name: str = ""  # in a SPEC
    level_kind: str = ""  # in a manifest, where it is another
    subject: str = ""  # what must follow the colon, in capitals as messages name it
    parameters: tuple[Parameter, ...] = ()  # beside the common ones
    record_type: type[LevelRecord] = PlainRecord
    has_target_tokens = True  # its tokens are the target's, whatever model is above it

    def check(self, spec: DraftSpec) -> None:
        """Raises ValueError where parts of a SPEC contradict each other."""

    def members(self, spec: DraftSpec) -> dict[str, object]:
        """The members of the record that only this kind has: the parameters by the same names."""
        own = [parameter for parameter in self.parameters if parameter.name in self.record_type.model_fields]
        return {parameter.name: spec.parameters.get(parameter.name, parameter.default) for parameter in own}

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        """What the level has in common with the target or, of a tokenizer, with the level above."""
        return ["tokenizer"] if same_tokenizer else []

    def record(
        self,
        spec: DraftSpec,
        name: str,
        codec: LevelCodec | None = None,
        path: str | None = None,
        same_tokenizer: bool = True,
    ) -> LevelRecord:
        """The level of the manifest that a SPEC becomes; `path` is its folder or file in the package."""
        default = DEFAULT_CONFIDENCE if same_tokenizer else DEFAULT_FOREIGN_CONFIDENCE
        members = dict(
            name=name,
            kind=self.level_kind or self.name,
            codec=codec,
            location="package",
            files=[],
            path=path,
            shares=self.shares(spec, same_tokenizer),
            num_draft_tokens=spec.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS,
            confidence=default if spec.confidence is None else spec.confidence,
            **self.members(spec),
        )
        return self.record_type.model_validate(members)

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        """Check that the draft can serve under a target, and find its files.

        Raises:
            MxconvError: its files are missing or unfit, or it was not made for this target.
        """
        return OpenedDraft(spec, self.name)

    def codec_in(self, draft: OpenedDraft, own_codec: LevelCodec) -> LevelCodec | None:
        """The codec of a record in a package whose 4-bit level has `own_codec`."""
        return draft.codec

    def path_in(self, folder: str, draft: OpenedDraft) -> str | None:
        """The `path` of a record whose files lie in a folder of the package."""
        return folder if draft.files else None

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        """The draft of a SPEC that is no part of the run's package."""
        return OpenedDraft(spec, self.name)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        """Load a level below those of a run.

        Args:
            record: of the level.
            place: its folder or file, where it has one.
            run: the levels above.

        Raises:
            MxconvError: files are missing or damaged, or do not fit the target.
        """
        raise NotImplementedError

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """The cost of a pass of a level.

        Args:
            record: of the level.
            place: its folder or file, where it has one.
            package: that is decoded.
            target: the cost of the first level of the run; None of that level itself.
        """
        raise NotImplementedError


class LookUpKind(DraftKind):
    """A kind without a model."""

    is_look_up = True
    has_target_tokens = False

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        return LoadedLevel(record, None, speaker(run), kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        return PassCost("bf16" if target is None else target.codec)


class LookUp(Draft, Generic[State]):
    """A draft that proposes what followed before, as a chain or as a tree.

    Args:
        statistics: what it did.
        confidence: a chain stops before the first token whose probability is below.
    """

    def __init__(self, statistics: LevelStatistics, confidence: float = 0.0) -> None:
        self.statistics = statistics
        self.confidence = confidence

    def of_text(self, statistics: LevelStatistics, acceptance: Acceptance) -> Self:
        """A draft for one text with the same tables, which all texts read."""
        made = copy.copy(self)
        made.statistics = statistics
        return made

    @abstractmethod
    def state(self, context: Sequence[int]) -> State:
        """The state after a context."""

    @abstractmethod
    def continuations(self, state: State) -> Iterable[tuple[int, float, State]]:
        """The different tokens that may follow, with their probabilities and states; a chain takes the first."""

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The likeliest tree of continuations; a chain of those that it is confident of."""
        least = self.confidence if limits.is_chain else 0.0
        with self.statistics.timed_pass():
            return grow_best_first(self.state(context), self.continuations, limits, least)


def speaker(run: Run) -> Tokenizer | None:
    """The tokenizer of the lowest level that is loaded."""
    return run.levels[-1].tokenizer if run.levels else run.tokenizer


def placed(record: LevelRecord, place: Path | None, run: Run, what: str = "model") -> Path:
    """The place of a level that cannot do without.

    Raises:
        PackageError: the manifest names none.
    """
    if place is None:
        raise PackageError(
            f"{run.package.root}: level {record.name} without a path; a {what} needs one. Convert again."
        )
    return place


OF_FORMAT = {"eagle3": "eagle3", "dflash": "dflash"}
OF_MODEL_TYPE = {
    "mlp_speculator": "speculator",
    "spire": "spire",
    "gemma4_assistant": "gemma4-assistant",
    "medusa": "medusa",
}


def reader_of(config: Mapping[str, object]) -> str | None:
    """The kind of reader that a config.json describes; None where it describes anything else."""
    if "medusa_num_heads" in config and "hidden_size" not in config:  # a whole model has its own size
        return "medusa"
    if "dflash_config" in config:
        return "dflash"
    own = OF_FORMAT.get(str(config.get("speculators_model_type")))
    return own or OF_MODEL_TYPE.get(str(config.get("model_type")))
