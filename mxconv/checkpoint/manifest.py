"""The manifest, `mxconv.json`: what a package holds, level by level, tensor by tensor, file by file.

The models below are the schema (`formats/manifest.schema.json` is generated from them, `formats/package.md` explains
it). The file carries its own SHA-256, computed with the digest's 64 digits as zeros, so that no byte of it can
change unnoticed; every other file's SHA-256 is in it.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from mxconv import __version__
from mxconv.checkpoint.carried import BLOCK_BYTES, CarriedTensor, Part
from mxconv.checkpoint.json_file import MAX_JSON_BYTES, parse_json_object
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.checkpoint.stacked import Axes, StackedExperts
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import float_format
from mxconv.errors import CheckpointError, PackageError

FILE_NAME = "mxconv.json"
FORMAT_VERSION: Literal[1] = 1
NO_DIGEST = "0" * 64


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
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in lower-case hex")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Record(BaseModel):
    """Base of all parts: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileRecord(Record):
    path: RelativePath
    num_bytes: Count
    sha256: Digest


class SourceRecord(Record):
    """Where the weights came from."""

    id: str = Field(description="path or Hub id as given; absolute where the target stays in a local folder")
    commit: str | None = Field(description="resolved commit of a Hub id")
    files: list[FileRecord] = Field(description="weight files and index of the source")
    dtype: Literal["BF16", "F16"] = Field(description="16-bit format of the quantized tensors")
    cast: bool = Field(
        description="whether F32 tensors were rounded to dtype; lossless then refers to the rounded ones"
    )


class TokenizerRecord(Record):
    sha256: Digest = Field(description="of tokenizer.json")
    vocab_size: Count = Field(description="from config.json")


class SegmentRecord(Record):
    """A BSFP segment table, see formats/bsfp.md."""

    kind: Literal["fitted", "paper"]
    residual_bits: Annotated[int, Field(ge=8, le=12)]
    starts: list[list[int]]
    levels: list[float]
    num_escapes: Count
    rescale_factor: float = Field(
        default=1.0, ge=2.0**-128, le=1, description="below 1: rescaled by SPEQ Algorithm 1, not lossless"
    )

    @classmethod
    def of(cls, table: SegmentTable, num_escapes: int, rescale_factor: float) -> "SegmentRecord":
        return cls(
            kind="paper" if table.kind == "paper" else "fitted",
            residual_bits=table.residual_bits,
            starts=[list(row) for row in table.starts],
            levels=list(table.levels),
            num_escapes=num_escapes,
            rescale_factor=rescale_factor,
        )

    def table(self, dtype: str) -> SegmentTable:
        """Raises CodecError where the numbers are no segment table."""
        starts = tuple(tuple(row) for row in self.starts)
        return SegmentTable(float_format(dtype), self.residual_bits, starts, tuple(self.levels), self.kind)


class ExpertsRecord(Record):
    """That a tensor is a stack of matrices, see formats/package.md, "Stacked experts"."""

    axes: Axes = Field(description="of the source: (experts, out_features, in_features), or the last two exchanged")
    segments: list[SegmentRecord] = Field(default=[], description="BSFP: one an expert, where they share none")


class ScaledRecord(Record):
    """That a matrix is FP8 with block scales, see formats/fp8.md."""

    by: str = Field(description="name of the tensor that holds its scales")
    block: Annotated[list[Annotated[int, Field(ge=1, lt=2**31)]], Field(min_length=2, max_length=2)] = Field(
        description="rows and columns of a block"
    )


class CarriedRecord(Record):
    """That a tensor is the source's own MXFP4, see formats/package.md, "Sources that are not 16 bits"."""

    of: str = Field(description="what the arrays are named by")
    part: Part = Field(description="the array that stands for this tensor")


class TensorRecord(Record):
    name: str
    dtype: str = Field(description="as safetensors names it; of a cast tensor the 16-bit one")
    shape: list[Count]
    codec: Literal["mxfp4", "bsfp", "keep"]
    reason: str = Field(description="why it has this codec")
    sha256: Digest = Field(description="of the tensor's bytes, row-major, little-endian")
    segments: SegmentRecord | None = None
    experts: ExpertsRecord | None = Field(default=None, description="of a tensor that is a stack of matrices")
    scaled: ScaledRecord | None = Field(default=None, description="of an FP8 matrix")
    carried: CarriedRecord | None = Field(default=None, description="of MXFP4 that the source has")

    @model_validator(mode="after")
    def _stack(self) -> "TensorRecord":
        if self.carried is not None:
            ends = {"codes": [BLOCK_BYTES], "scales": []}[self.carried.part]
            is_whole = len(self.shape) == 3 + len(ends) and self.shape[3:] == ends and 0 not in self.shape
            if not is_whole or (self.dtype, self.codec, self.experts) != ("U8", "mxfp4", None):
                raise ValueError(
                    f"carried {self.carried.part}: {self.codec} of {self.dtype} {self.shape}; mxfp4 of U8 (experts, "
                    f"out_features, blocks{', 16' if ends else ''}) is required"
                )
        if self.experts is None:
            return self
        if self.codec == "keep" or len(self.shape) != 3 or 0 in self.shape:
            raise ValueError(
                f"experts of {self.codec} {self.shape}; three dimensions, none empty, that are not kept are required"
            )
        if own := self.experts.segments:
            widths = {(each.residual_bits, len(each.starts)) for each in own}
            if len(own) != self.shape[0] or len(widths) != 1 or self.segments is not None:
                raise ValueError(
                    f"{len(own)} segment tables of {len(widths)} kinds for {self.shape[0]} experts; one each and of "
                    "one kind, or `segments` for all, is required"
                )
        return self

    @property
    def stack(self) -> StackedExperts | None:
        """Where each expert lies; None of a matrix, and of what is no stack."""
        if (carried := self.carried_tensor) is not None:
            return carried.stack
        if self.experts is None:
            return None
        num_experts, first, second = self.shape
        return StackedExperts((num_experts, first, second), self.experts.axes)

    @property
    def carried_tensor(self) -> CarriedTensor | None:
        """Of MXFP4 that the source has."""
        if self.carried is None:
            return None
        return CarriedTensor(self.carried.of, self.carried.part, tuple(self.shape))

    @property
    def stem(self) -> str:
        """What its arrays are named by."""
        return self.name if self.carried is None else self.carried.of

    @property
    def all_segments(self) -> list[SegmentRecord]:
        """Every segment table of a BSFP tensor: of the matrix or of all experts one, or one an expert."""
        if self.segments is not None:
            return [self.segments]
        return [] if self.experts is None else self.experts.segments

    @property
    def is_rescaled(self) -> bool:
        """Whether it comes back changed."""
        return any(each.rescale_factor != 1.0 for each in self.all_segments)


Kind = Literal[
    "target",
    "self-draft",
    "model",
    "layer-skip",
    "swift",
    "early-exit",
    "streaming",
    "prompt-lookup",
    "ngram",
    "token-recycling",
    "stand",
    "speculator",
    "spire",
    "eagle3",
]
Shared = Literal["weights", "kv_cache", "tokenizer"]


class LevelRecord(Record):
    """One level of the hierarchy; `levels[0]` is the target, each next one is cheaper."""

    name: str
    kind: Kind
    codec: Literal["bf16", "f16", "bsfp", "mxfp4", "package"] | None = Field(
        description="of the weights; null where a level has none, or the target's"
    )
    location: Literal["package", "source"] = Field(description="source: the weights stay where source.id says")
    files: list[RelativePath] = Field(description="safetensors files of this level")
    path: RelativePath | None = Field(default=None, description="folder of a model, file of an n-gram table")
    shares: list[Shared] = Field(description="weights and kv_cache with the target, tokenizer with the level above")
    num_draft_tokens: Annotated[int, Field(ge=1, le=64)] | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="drafting stops when the top probability falls below"
    )
    skipped: str | None = Field(default=None, description="layer-skip: the parts left out, as a3-5+m7+8")
    skip: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="swift: the share of attention and MLP parts that is left out at most"
    )
    sink: Count | None = Field(default=None, description="streaming: first positions that are attended to")
    window: Annotated[int, Field(ge=1, lt=2**63)] | None = Field(
        default=None, description="streaming: last positions that are attended to"
    )
    max_ngram: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="prompt-lookup, stand: tokens of the longest n-gram that is looked up"
    )
    min_ngram: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None, description="prompt-lookup: and of the shortest; null is 1"
    )
    num_candidates: Annotated[int, Field(ge=1, le=64)] | None = Field(
        default=None,
        description="token-recycling: tokens remembered behind each; stand: behind each n-gram; speculator: paths of "
        "its candidate tree, null where they are as many as pay",
    )


class OptionsRecord(Record):
    """What `quantize` was asked for, as far as it decides the bytes."""

    codec: Literal["mxfp4", "bsfp"]
    scale_rule: Literal["ocp", "even", "ceil", "ggml", "mse"]
    lm_head: Literal["keep", "quantize"]
    skip: list[str]
    outliers: Literal["exact", "rescale"]
    segments: Literal["fitted", "paper"]
    residual_bits: Annotated[int, Field(ge=8, le=12)] | None
    on_nonfinite: Literal["error", "keep"]
    dtype: Literal["bf16", "fp16"] | None
    target: Literal["include", "reference"]


class DecodeRecord(Record):
    num_prompts: Count
    num_tokens: Count
    num_token_mismatches: Count
    num_logit_mismatches: Count
    target: str | None = Field(
        default=None, description="name of the level that was decoded with drafts and without; null: the first"
    )


class CertificateRecord(Record):
    """What `verify --write` found."""

    created_by: str
    source_compared: bool
    num_tensors: Count
    num_bit_exact: Count
    lossless: bool
    decode: DecodeRecord | None


class TunedRecord(Record):
    """What `mxconv tune` found fastest, where and on what; readers that are not told otherwise decode like this."""

    levels: Annotated[list[str], Field(min_length=1)] = Field(description="names, the target first; alone: no drafts")
    num_draft_tokens: list[Annotated[int, Field(ge=1, le=64)]] = Field(description="of each level but the target")
    confidence: list[Annotated[float, Field(ge=0, le=1)]] = Field(description="of each level but the target")
    speedup: Annotated[float, Field(gt=0)] = Field(description="over plain decoding, geometric mean over prompts")
    num_prompts: Count
    num_tokens: Count = Field(description="decoded with these levels")
    cpu: str
    threads: Annotated[int, Field(ge=1, lt=2**31)]
    kernel: str

    @model_validator(mode="after")
    def _one_each(self) -> "TunedRecord":
        if not len(self.num_draft_tokens) == len(self.confidence) == len(self.levels) - 1:
            raise ValueError(
                f"{len(self.num_draft_tokens)} lengths and {len(self.confidence)} thresholds for {len(self.levels)} "
                "levels; one each for every level but the target is required"
            )
        return self

    def applied_to(self, levels: list[LevelRecord]) -> list[LevelRecord]:
        """The levels that are named here, in that order, with these numbers."""
        numbers = zip(levels[1:], self.num_draft_tokens, self.confidence, strict=True)
        return [
            levels[0],
            *(
                level.model_copy(update={"num_draft_tokens": number, "confidence": confidence})
                for level, number, confidence in numbers
            ),
        ]


class Manifest(Record):
    format: Literal["mxconv"] = "mxconv"
    format_version: Literal[1] = FORMAT_VERSION
    created_by: str = f"mxconv {__version__}"
    source: SourceRecord
    tokenizer: TokenizerRecord | None = Field(description="null where the source has no tokenizer.json")
    options: OptionsRecord
    lossless: bool = Field(description="whether the 16-bit source can be rebuilt from this package alone")
    bits_per_weight: float
    levels: Annotated[list[LevelRecord], Field(min_length=1)]
    tensors: list[TensorRecord]
    files: list[FileRecord] = Field(description="every file of the package but this one")
    certificate: CertificateRecord | None = None
    tuned: TunedRecord | None = None
    manifest_sha256: Digest = Field(default=NO_DIGEST, description="of this file, with these 64 digits as zeros")

    @property
    def decoded_level(self) -> str | None:
        """The name of the level whose decoding the certificate is about; None where it is about none."""
        if self.certificate is None or self.certificate.decode is None:
            return None
        return self.certificate.decode.target or self.levels[0].name

    def to_bytes(self) -> bytes:
        """The file's bytes, digest filled in."""
        blank = json.dumps(self.model_copy(update={"manifest_sha256": NO_DIGEST}).model_dump(), indent=1).encode()
        return _with_digest(blank, hashlib.sha256(blank).hexdigest())


def read_manifest(package: Path) -> Manifest:
    """Read and check `mxconv.json`.

    Raises:
        PackageError: it is missing, too long, not what the schema says, of another format version, or damaged.
    """
    path = package / FILE_NAME
    try:
        num_bytes = check_regular_file(path)
    except CheckpointError as error:
        raise PackageError(f"{error} A package is a folder that `mxconv quantize` wrote.") from error
    if num_bytes > MAX_JSON_BYTES:
        raise PackageError(f"{path}: {num_bytes:,} bytes; at most {MAX_JSON_BYTES:,} are read. Convert again.")
    with open_file(path) as file:
        raw = file.read(num_bytes)
    try:
        members = parse_json_object(raw, str(path), unique_keys=True)
    except CheckpointError as error:
        raise PackageError(str(error)) from error
    version = members.get("format_version")
    if members.get("format") != "mxconv" or version != FORMAT_VERSION:
        raise PackageError(
            f"{path}: format {members.get('format')!r}, version {version!r}; this program reads 'mxconv', version "
            f"{FORMAT_VERSION}. Convert again, or use the mxconv that wrote it."
        )
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        place = ".".join(str(part) for part in first["loc"])
        raise PackageError(
            f"{path}: {place}: {first['msg']} (found {str(first['input'])[:80]!r}). The file is damaged; convert again."
        ) from error
    digest = manifest.manifest_sha256
    blank = _with_digest(raw, NO_DIGEST, digest)
    if hashlib.sha256(blank).hexdigest() != digest:
        raise PackageError(
            f"{path}: its SHA-256 is not the recorded {digest}; no byte of it may change. "
            "The file is damaged or was edited; convert again."
        )
    return manifest


def replace_manifest(package: Path, manifest: Manifest) -> None:
    """Write another manifest into a package, beside the old one first: there is always a whole one.

    Raises:
        PackageError: the file system refuses.
    """
    beside = package / (FILE_NAME + ".new")
    try:
        beside.write_bytes(manifest.to_bytes())
        beside.replace(package / FILE_NAME)
    except OSError as error:
        raise PackageError(f"{beside}: cannot be written ({error.strerror}). Check permissions.") from error


def _with_digest(raw: bytes, digest: str, old: str = NO_DIGEST) -> bytes:
    """The file with the last member's digest replaced."""
    head, _, tail = raw.rpartition(old.encode())
    return head + digest.encode() + tail


if __name__ == "__main__":
    print(json.dumps(Manifest.model_json_schema(), indent=1))
