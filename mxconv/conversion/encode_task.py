"""A tensor of a conversion as a piece of work for any process: read, encode, write where the layout says."""

from dataclasses import dataclass

from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.conversion.encode import EncodedTensor, Write, encode_tensor, tensor_sha256
from mxconv.conversion.executor import Advance
from mxconv.conversion.staging import TensorSink
from mxconv.conversion.survey import Survey


@dataclass(frozen=True)
class EncodePiece:
    """One tensor."""

    survey: Survey
    sink: TensorSink  # of its arrays
    copy: bool  # also write the 16-bit tensor under its own name
    hash_source: bool

    @property
    def name(self) -> str:
        return self.survey.plan.name

    @property
    def num_bytes(self) -> int:
        return self.survey.plan.num_bytes


@dataclass(frozen=True)
class EncodeTensor:
    """A task: write a tensor's arrays."""

    scale_rule: ScaleRule

    def __call__(self, piece: EncodePiece, advance: Advance) -> EncodedTensor:
        def encode(write: Write) -> EncodedTensor:
            return encode_tensor(
                piece.survey,
                self.scale_rule,
                write,
                copy=piece.copy,
                hash_source=piece.hash_source or piece.sink.needs_sha256,
                progress=advance,
            )

        return piece.sink.fill(encode)


def hash_tensor(piece: tuple[Survey, str | None], _: Advance) -> str:
    """A task: the SHA-256 of a 16-bit tensor, unless it is known."""
    survey, sha256 = piece
    return tensor_sha256(survey) if sha256 is None else sha256
