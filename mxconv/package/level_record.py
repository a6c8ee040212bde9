"""What the manifest says of a level: one class for the members that every kind has, one for each kind with its own.

Manifests name all members of all kinds, in the order of `LevelBase`; those of other kinds are null. The kinds
themselves are above, in `mxconv/drafts/`, since they load decoders. A record must be read where no decoder is known,
and so the union is here.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from mxconv.package.tensor_record import Count, Record

SCREEN_FILE = "head_screen.safetensors"  # of a package
DEFAULT_NUM_DRAFT_TOKENS = 8  # of BSFP too, where SPEQ has 16: docs/research/experiments.md says why
DEFAULT_CONFIDENCE = 0.4
DEFAULT_BSFP_CONFIDENCE = 0.6

if TYPE_CHECKING:
    Null = Any  # a class of a kind gives its own member another type
else:
    Null = None

Shared = Literal["weights", "kv_cache", "tokenizer"]
Share = Annotated[float, Field(ge=0, le=1)]
UpTo64 = Annotated[int, Field(ge=1, le=64)]


def check_relative(path: str) -> str:
    """A path inside the package: plain names joined by `/`, none of them `..`; the same on every system.

    Raises:
        ValueError: it is no such path.
    """
    names = path.split("/")
    if any(name in ("", ".", "..") for name in names) or any(c in path for c in "\\:\0") or not path.isprintable():
        raise ValueError(f"path {path!r}; a relative path of plain names joined by '/' is required")
    return path


RelativePath = Annotated[str, AfterValidator(check_relative)]


class ScreenRecord(Record):
    """Which rows of its output head a level reads, see formats/package.md, "Head screen"."""

    rank: Annotated[int, Field(ge=1, lt=2**31)]
    num_candidates: Annotated[int, Field(ge=1, lt=2**31)]


class LevelBase(Record):
    """One level of the hierarchy; `levels[0]` is the target, each next one is cheaper."""

    name: str
    kind: str
    codec: Literal["bf16", "f16", "bsfp", "mxfp4", "package"] | None = Field(
        description="of the weights; null where a level has none, or the target's"
    )
    location: Literal["package", "source"] = Field(description="source: the weights stay where source.id says")
    files: list[RelativePath] = Field(description="safetensors files of this level")
    path: RelativePath | None = Field(default=None, description="folder of a model, file of a table")
    shares: list[Shared] = Field(description="weights and kv_cache with the target, tokenizer with the level above")
    num_draft_tokens: UpTo64 | None = None
    confidence: Share | None = Field(default=None, description="drafting stops when the top probability falls below")
    level: Null = None
    skipped: Null = None  # of kinds that were removed, as is the next one
    skip: Null = None
    sink: Null = None
    window: Null = None
    pages: Null = None
    experts: Null = None
    max_ngram: Null = None
    min_ngram: Null = None
    num_candidates: Null = None

    screen: ScreenRecord | None = Field(
        default=None, description="absent where the level reads its whole output head; of self-drafts"
    )

    @model_serializer(mode="wrap")
    def _without_later_members(self, members: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Packages without them keep the bytes of those that were written before there were these members."""
        later = ("screen", "pages")
        return {name: value for name, value in members(self).items() if name not in later or value is not None}


class PlainRecord(LevelBase):
    """A level of a kind without members of its own."""

    kind: Literal[
        "target",
        "self-draft",
        "ngram",
        "spire",
        "eagle3",
        "dflash",
        "gemma4-assistant",
        "mtp",
        "medusa",
    ]


class ModelRecord(LevelBase):
    kind: Literal["model"]
    level: str | None = Field(
        default=None, description="with codec package: name of the level of that package which drafts; null: its target"
    )


class StreamingRecord(LevelBase):
    kind: Literal["streaming"]
    sink: Count = Field(description="first positions that are attended to")
    window: Annotated[int, Field(ge=1, lt=2**63)] = Field(description="last positions that are attended to")


class RetrievalRecord(LevelBase):
    kind: Literal["retrieval"]
    sink: Count = Field(description="first positions that are attended to, in whole pages of 64")
    window: Annotated[int, Field(ge=64, lt=2**63)] = Field(description="last ones, likewise")
    pages: Annotated[int, Field(ge=1, lt=2**31)] = Field(description="between them, chosen by each token")


class FewerExpertsRecord(LevelBase):
    kind: Literal["fewer-experts"]
    experts: Count = Field(description="how many a token is sent to")


class PromptLookupRecord(LevelBase):
    kind: Literal["prompt-lookup"]
    max_ngram: UpTo64 | None = Field(
        default=None, description="tokens of the longest n-gram that is looked up; null: 3"
    )
    min_ngram: UpTo64 | None = Field(default=None, description="and of the shortest; null: 1")


class SpeculatorRecord(LevelBase):
    kind: Literal["speculator"]
    num_candidates: UpTo64 | None = Field(
        default=None, description="paths of its candidate tree; null: as many nodes as pay"
    )


LevelRecord = Annotated[
    PlainRecord
    | ModelRecord
    | StreamingRecord
    | RetrievalRecord
    | FewerExpertsRecord
    | PromptLookupRecord
    | SpeculatorRecord,
    Field(discriminator="kind"),
]
