"""A tensor in the manifest: what it was, what it has become, and what is needed to read it.

The models below are part of the schema of `manifest.py`; formats/package.md explains them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mxconv.checkpoint.stacked import BLOCK_BYTES, Axes, CarriedTensor, Part, StackedExperts
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import float_format

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in lower-case hex")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Record(BaseModel):
    """Base of all parts: unknown keys are errors, values are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    """A tensor that is a stack of matrices, see formats/package.md, "Stacked experts"."""

    axes: Axes = Field(description="of the source: (experts, out_features, in_features), or the last two exchanged")
    segments: list[SegmentRecord] = Field(default=[], description="BSFP: one an expert, where they share none")


class ScaledRecord(Record):
    """A matrix that is FP8 with block scales, see formats/fp8.md."""

    by: str = Field(description="name of the tensor that holds its scales")
    block: Annotated[list[Annotated[int, Field(ge=1, lt=2**31)]], Field(min_length=2, max_length=2)] = Field(
        description="rows and columns of a block"
    )


class CarriedRecord(Record):
    """A tensor of the source's own MXFP4, see formats/package.md, "Sources that are not 16 bits"."""

    of: str = Field(description="what the arrays are named by")
    part: Part = Field(description="the array that stands for this tensor")


class TensorRecord(Record):
    name: str
    dtype: str = Field(description="as safetensors names it; of a cast tensor the 16-bit one")
    shape: list[Count]
    codec: Literal["mxfp4", "mxint8", "bsfp", "keep"]
    reason: str = Field(description="why it has this codec")
    sha256: Digest = Field(description="of the tensor's bytes, row-major, little-endian")
    rounded_from: str | None = Field(
        default=None,
        pattern=r"^[A-Z][A-Z0-9_]*$",
        description="what the source has where --dtype rounded it to `dtype`: F32, F16, BF16, or GGML's type of a "
        "quantized tensor, as Q4_1; null: nothing was rounded, or the package is older than this key",
    )
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
        if self.codec in ("keep", "mxint8") or len(self.shape) != 3 or 0 in self.shape:
            raise ValueError(
                f"experts of {self.codec} {self.shape}; three dimensions, none empty, of mxfp4 or bsfp are required"
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
    def is_quantized(self) -> bool:
        """Whether the draft has codes for it; what is kept is in both levels as it is."""
        return self.codec != "keep"

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
        """The tensor of the source's own MXFP4; None of any other."""
        if self.carried is None:
            return None
        return CarriedTensor(self.carried.of, self.carried.part, tuple(self.shape))

    @property
    def stem(self) -> str:
        """The name that its arrays begin with."""
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
