"""The matrices of all experts of a layer as one tensor of three dimensions, whether a checkpoint stacks them or not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arch.gguf.arrangement import arranged, shape_of
from mxconv.arch.gguf.place import Place
from mxconv.arrays import U8, U16
from mxconv.errors import ModelError
from mxconv.interop.gguf.gguf_tensor import GgufTensor, GgufType, four_bit
from mxconv.interop.gguf.source_hash import SourceHash
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.report.open_weights import WeightTensor

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class StackedTensor:
    """To write, one matrix behind another; `shape` is (num_experts, out_features, in_features)."""

    name: str
    shape: tuple[int, ...]
    type: GgufType
    experts: Sequence[GgufTensor]

    @classmethod
    def of(cls, name: str, experts: dict[int, GgufTensor], num_experts: int) -> "StackedTensor":
        """Put some together.

        Raises:
            ModelError: one is missing, or they are of several shapes or types.
        """
        if missing := sorted(set(range(num_experts)) - set(experts)):
            raise ModelError(
                f"{name}: expert {missing[0]} is missing; all {num_experts} are required. Convert the model again."
            )
        parts = [experts[number] for number in range(num_experts)]
        kinds = {(part.shape, part.type) for part in parts}
        if len(kinds) > 1:
            raise ModelError(
                f"{name}: experts of {len(kinds)} shapes or types; one is required. Export with --to safetensors."
            )
        return cls(name, (num_experts, *parts[0].shape), parts[0].type, parts)

    @classmethod
    def sixteen_bit(cls, place: Place, package: Package, record: TensorRecord, weight: WeightTensor) -> "StackedTensor":
        """A stack of the checkpoint bit for bit, its hash compared."""
        assert record.stack is not None
        proof = SourceHash(package, record)
        experts = [_expert(place, weight, record, proof, number) for number in range(record.stack.num_experts)]
        return cls(place.name, (len(experts), *experts[0].shape), experts[0].type, experts)

    @classmethod
    def four_bit(cls, place: Place, package: Package, record: TensorRecord, weight: WeightTensor) -> "StackedTensor":
        """The codes of a stack as they are; also of MXFP4 that the checkpoint itself has."""
        assert record.stack is not None
        matrix = replace(weight, shape=record.stack.matrix_shape)
        experts = [four_bit(place, package, record, matrix, number) for number in range(record.stack.num_experts)]
        return cls(place.name, (len(experts), *experts[0].shape), experts[0].type, experts)

    @property
    def num_bytes(self) -> int:
        return sum(expert.num_bytes for expert in self.experts)

    @property
    def ggml_type(self) -> "GGMLQuantizationType":
        return self.experts[0].ggml_type

    def pieces(self) -> Iterator[U8]:
        """The bytes in order, some megabytes at a time."""
        return chain.from_iterable(expert.pieces() for expert in self.experts)


def _expert(place: Place, weight: WeightTensor, record: TensorRecord, proof: SourceHash, number: int) -> GgufTensor:
    """One expert's matrix, read at once; experts are read in their order."""
    stack = record.stack
    assert stack is not None
    num_rows = stack.matrix_shape[0]

    def rows(start: int, stop: int) -> U16:
        found = weight.rows(number, number + 1)
        proof.add(found, number + 1 == stack.num_experts)
        return arranged(place, np.ascontiguousarray(stack.matrix(found[0])), 0, num_rows)

    def release(start: int, stop: int) -> None:
        weight.release(number, number + 1)

    shape = shape_of(place, stack.matrix_shape)
    return GgufTensor(place.name, shape, weight.dtype, rows, shape[0], release)  # type: ignore[arg-type]  # checked
