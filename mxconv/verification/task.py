"""A tensor of a package as a piece of work for any process."""

from collections.abc import Mapping
from dataclasses import dataclass

from mxconv.checkpoint.tensor import SourceTensor
from mxconv.conversion.executor import Advance
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.verification.rebuilt import num_bytes_of
from mxconv.verification.tensors import TensorVerification, verify_alone, verify_with_source


@dataclass(frozen=True)
class VerifyPiece:
    """One tensor."""

    record: TensorRecord
    source: Mapping[str, SourceTensor] | None  # what it was converted from, and its scales; None: nobody looks

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.record)

    @classmethod
    def of(cls, record: TensorRecord, tensors: Mapping[str, SourceTensor] | None) -> "VerifyPiece":
        """With what is needed of the source's tensors."""
        if tensors is None:
            return cls(record, None)
        names = [record.name, *([record.scaled.by] if record.scaled is not None else [])]
        return cls(record, {name: tensors[name] for name in names if name in tensors})


@dataclass(frozen=True)
class VerifyTensor:
    """A task: rebuild a tensor and compare it; None where there is nothing to compare."""

    package: Package

    def __call__(self, piece: VerifyPiece, advance: Advance) -> TensorVerification | None:
        package, record, found = self.package, piece.record, None
        if piece.source is not None:
            found = verify_with_source(package, record, piece.source)
        elif package.has_target:
            found = verify_alone(package, record)
        elif record.codec != "keep":  # only the draft is here; its bytes are what the file's hash says
            found = TensorVerification(record.name, record.codec, "lossy", record.sha256)
        advance(num_bytes_of(record))
        return found
