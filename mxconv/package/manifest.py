"""The manifest, `mxconv.json`: what a package holds, level by level, tensor by tensor, file by file.

The models below are the schema (`formats/manifest.schema.json` is generated from them, `formats/package.md` explains
it). The file carries its own SHA-256, computed with the digest's 64 digits as zeros, so that no byte of it can
change unnoticed; every other file's SHA-256 is in it.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat

from mxconv import __version__
from mxconv.checkpoint.folder import PACKAGE_FILE, holds_weights
from mxconv.errors import PackageError
from mxconv.package.level_record import LevelRecord, RelativePath
from mxconv.package.sealed_file import NO_DIGEST, read_sealed, sealed
from mxconv.package.tensor_record import Count, Digest, Record, SegmentRecord, TensorRecord

__all__ = [
    "FILE_NAME",
    "CertificateRecord",
    "DecodeRecord",
    "DraftWeightsRecord",
    "EvaluationRecord",
    "FileRecord",
    "Manifest",
    "OptionsRecord",
    "QualityRecord",
    "SegmentRecord",
    "SourceRecord",
    "TensorRecord",
    "TokenizerRecord",
    "read_manifest",
    "replace_manifest",
]

FILE_NAME = PACKAGE_FILE
FORMAT_VERSION: Literal[1] = 1
FLOATS = ("F32", "F16", "BF16")


class FileRecord(Record):
    path: RelativePath
    num_bytes: Count
    sha256: Digest


class SourceRecord(Record):
    """Where the weights came from."""

    id: str = Field(description="path, Hub id or URL as given; absolute where the target stays in a local folder")
    commit: str | None = Field(description="resolved commit of a Hub id")
    files: list[FileRecord] = Field(description="weight files and index of the source")
    dtype: Literal["BF16", "F16"] = Field(description="16-bit format of the quantized tensors")
    cast: bool = Field(description="whether --dtype rounded tensors to dtype; lossless then refers to the rounded ones")


class TokenizerRecord(Record):
    sha256: Digest = Field(description="of tokenizer.json")
    vocab_size: Count = Field(description="from config.json")


class OptionsRecord(Record):
    """The options of `quantize` that decide the bytes."""

    codec: Literal["mxfp4", "bsfp"]
    scale_rule: Literal["ocp", "even", "ceil", "ggml", "mse"]
    lm_head: Literal["keep", "quantize", "int8", "exact"]
    skip: list[str]
    outliers: Literal["exact", "rescale"]
    segments: Literal["fitted", "paper"]
    residual_bits: Annotated[int, Field(ge=8, le=12)] | None
    group_scales: Literal["least-squares", "unclipped"] = Field(
        default="least-squares", description="BSFP: the rule for scales of groups, see bsfp.md; absent: least squares"
    )
    on_nonfinite: Literal["error", "keep"]
    dtype: Literal["bf16", "fp16"] | None
    target: Literal["include", "reference"]


class DraftWeightsRecord(Record):
    """Codes and scales that `--draft-weights` or `--calibrate` gave, see formats/package.md."""

    sha256: Digest = Field(description="of the draft file")
    description: dict[str, Any] = Field(description="how they were made; `rule` names the method")
    tensors: list[str] = Field(description="whose codes they are; any other MXFP4 tensor is cast from the source")


class DecodeRecord(Record):
    num_prompts: Count
    num_tokens: Count
    num_token_mismatches: Count
    num_logit_mismatches: Count
    num_chat_prompts: Count = Field(
        default=0, description="prompts that were put into the target's chat template; the others were texts as given"
    )
    system: str | None = Field(
        default=None, description="the system message that was put before prompts in the chat template; null: none"
    )
    target: str | None = Field(
        default=None, description="name of the level that was decoded with drafts and without; null: the first"
    )
    batch: Count | None = Field(
        default=None, description="texts decoded side by side with drafts; null: one after another"
    )
    kv_dtype: Literal["fp32", "bf16", "fp16"] | None = Field(
        default=None, description="what caches kept of keys and values; null: fp32"
    )
    kernel: str | None = Field(default=None, description="the implementation whose bits these are; null: unknown")
    processors: list[str] = Field(default_factory=list, description="that decoded; empty: unknown")


class CertificateRecord(Record):
    """The result of `verify --write`; the three further counts are null where an earlier version wrote it."""

    created_by: str
    source_compared: bool
    num_tensors: Count
    num_bit_exact: Count = Field(description="whose bytes came out of the package, were hashed, and are the source's")
    num_rebuilt: Count | None = Field(default=None, description="the same number: nothing else is called bit-exact")
    num_derived: Count | None = Field(
        default=None, description="whose draft's codes were encoded again from the source, and are equal"
    )
    num_kept: Count | None = Field(
        default=None, description="stored as they are, or left in the source that the package references"
    )
    lossless: bool
    decode: DecodeRecord | None

    @property
    def proof(self) -> str:
        """One sentence on what was proven of the tensors."""
        against = "the source" if self.source_compared else "the recorded hashes"
        exact = f"{self.num_bit_exact} of {self.num_tensors} tensors"
        if self.num_rebuilt is None:
            return (
                f"{exact} called bit-exact, compared with {against}, by an earlier version, which did not say what "
                "was rebuilt"
            )
        parts = [f"{self.num_kept} kept as they are"]
        if self.source_compared:
            parts.append(f"the draft's codes of {self.num_derived} derived again and equal")
        return f"{exact} bit-exact, rebuilt from the package and compared with {against}; {', '.join(parts)}"


class QualityRecord(Record):
    """Next-token distributions of a level beside the target's; null is what is infinite or no number."""

    name: str = Field(description="of the level")
    perplexity: FiniteFloat | None
    perplexity_error: FiniteFloat | None = Field(description="standard error over tokens, as of the next two")
    mean_kl: FiniteFloat | None = Field(description="KL divergence of the target from the level, nats a token")
    mean_kl_error: FiniteFloat | None
    p99_kl: FiniteFloat | None = Field(description="99th percentile of the divergences")
    agreement: FiniteFloat | None = Field(description="share of tokens at which both find the same token the likeliest")
    agreement_error: FiniteFloat | None


class EvaluationRecord(Record):
    """The result of `evaluate --write`, see formats/package.md."""

    created_by: str
    sha256: Digest = Field(description="of the file of texts or prompts")
    num_bytes: Count = Field(description="of that file")
    context: Count | None = Field(
        description="tokens of a window, whose second half counts; null: the target's answers to prompts"
    )
    num_texts: Count = Field(description="windows, or answers")
    num_tokens: Count = Field(description="that count")
    activations: Literal["int8", "fp32"] = Field(description="what weights of 4 and 8 bits were multiplied by")
    kernel: str = Field(description="the implementation that computed")
    levels: Annotated[list[QualityRecord], Field(min_length=1)] = Field(description="the target first")


class Manifest(Record):
    format: Literal["mxconv"] = "mxconv"
    format_version: Literal[1] = FORMAT_VERSION
    created_by: str = f"mxconv {__version__}"
    source: SourceRecord
    tokenizer: TokenizerRecord | None = Field(description="null where the source has no tokenizer.json")
    options: OptionsRecord
    draft_weights: DraftWeightsRecord | None = Field(
        default=None, description="absent where every draft tensor is cast from the source"
    )
    lossless: bool = Field(description="whether the 16-bit source can be rebuilt from this package alone")
    bits_per_weight: float
    levels: Annotated[list[LevelRecord], Field(min_length=1)]
    tensors: list[TensorRecord]
    files: list[FileRecord] = Field(description="every file of the package but this one")
    certificate: CertificateRecord | None = None
    evaluation: EvaluationRecord | None = Field(default=None, description="absent where there is none")
    tuned: dict[str, Any] | None = Field(None, description="what earlier versions found fastest; ignored")
    manifest_sha256: Digest = Field(default=NO_DIGEST, description="of this file, with these 64 digits as zeros")

    @property
    def decoded_level(self) -> str | None:
        """The name of the level whose decoding the certificate is about; None where it is about none."""
        if self.certificate is None or self.certificate.decode is None:
            return None
        return self.certificate.decode.target or self.levels[0].name

    @property
    def rounded_from(self) -> dict[str, int]:
        """The number of tensors by what the source has where --dtype rounded them, most frequent first."""
        return dict(Counter(tensor.rounded_from for tensor in self.tensors if tensor.rounded_from).most_common())

    @property
    def quantizer_note(self) -> str | None:
        """One sentence on what the proof is about where the source was quantized; None where it was not."""
        types = [name for name in self.rounded_from if name not in FLOATS]
        if not types:
            return None
        return (
            f"The source is quantized ({', '.join(types)}): the proof is about its values rounded to "
            f"{self.source.dtype}; what the quantizer lost is not found again."
        )

    @property
    def draft_quality(self) -> str:
        """One sentence on how well the levels draft: what an evaluation found, or how to measure it."""
        if self.evaluation is not None:
            found = ", ".join(
                f"{level.name} {level.agreement:.3f}"
                for level in self.evaluation.levels[1:]
                if level.agreement is not None
            )
            return f"Share of {self.evaluation.num_tokens:,} tokens at which drafts agree with the target: {found}."
        measured = "`mxconv evaluate PACKAGE --texts FILE --write` measures how often it agrees with the target"
        if self.draft_weights is not None and self.draft_weights.tensors:
            return f"The draft has codes that texts chose, and no evaluation is stored: {measured}."
        mended = "`mxconv quantize --calibrate` makes it agree more often"
        return f"The draft is a direct cast, and no evaluation is stored: {measured}; {mended}."

    def members(self) -> dict[str, Any]:
        """As the file has them: without members that older packages lack, where they are null."""
        members = self.model_dump()
        counts = ("num_rebuilt", "num_derived", "num_kept")
        for part, names in ((members, ("draft_weights", "evaluation")), (members["certificate"] or {}, counts)):
            for name in names:
                if name in part and part[name] is None:
                    del part[name]
        if self.options.group_scales == "least-squares":
            del members["options"]["group_scales"]
        return members

    def to_bytes(self) -> bytes:
        """The file's bytes, digest filled in."""
        return sealed(self.members() | {"manifest_sha256": NO_DIGEST})


def read_manifest(package: Path) -> Manifest:
    """Read and check `mxconv.json`.

    Raises:
        PackageError: it is missing, too long, not what the schema says, of another format version, or damaged.
    """
    path = package / FILE_NAME
    if not os.path.lexists(path) and holds_weights(package):
        raise PackageError(
            f"{package}: a model, and no package, since it holds no {FILE_NAME}; a package is required. Convert it "
            f"first: mxconv quantize {package}"
        )
    return read_sealed(path, Manifest, "A package is a folder that `mxconv quantize` wrote.", "convert again")


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


if __name__ == "__main__":
    print(json.dumps(Manifest.model_json_schema(), indent=1))
