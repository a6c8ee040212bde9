"""From stored tensors to stacks of experts, each of whose matrices is made when a row first chooses it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U8, U16
from mxconv.checkpoint.carried import CarriedTensor, carried_tensors
from mxconv.checkpoint.expert_names import stacked_experts
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.engine.expert_stack import ExpertStack
from mxconv.engine.matrices import Matrices
from mxconv.kernels.matrix import Matrix
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package, StoredMxfp4


@dataclass(frozen=True, eq=False)
class DeferredMatrix:
    """The matrix of an expert that a checkpoint stores by itself, made when it is first used."""

    shape: tuple[int, int]
    make: Callable[[], Matrix]

    @cached_property
    def matrix(self) -> Matrix:
        return self.make()

    def multiply(self, x: F32) -> F32:
        return self.matrix.multiply(x)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.matrix.rows(indices)

    def turned(self) -> Matrix:
        return self.matrix.turned()


def dense_stacks(tensors: Mapping[str, SourceTensor], make: Matrices) -> dict[str, ExpertStack]:
    """The experts of a checkpoint as they lie in its files, by the names of the tensors.

    Matrices that are stored turned are views; native kernels, which read rows, get a copy of those that rows choose.
    """
    found = {
        name: _stack(experts, _dense(tensors[name], experts, make))
        for name, experts in stacked_experts(tensors).items()
        if tensors[name].dtype in FORMATS
    }
    for name, carried in carried_tensors(tensors).items():
        if carried.part == "codes":
            found[carried.of] = _stack(carried.stack, _repacked(tensors[name], tensors[carried.partner], make))
    return found


def exact_stacks(package: Package, make: Matrices) -> dict[str, ExpertStack]:
    """The experts of the target that a package has in other forms than a checkpoint: BSFP, and MXFP4 of the source."""

    def matrix(record: TensorRecord) -> Callable[[int], Matrix]:
        if record.carried is not None:
            return lambda expert: make.mxfp4_target(package.mxfp4(record, expert))
        name = f"{package.root}: tensor {record.name}"
        return lambda expert: make.bsfp(package.bsfp(record, expert), f"{name}, expert {expert}")

    return _stacks(package, lambda record: record.carried is not None or record.codec == "bsfp", matrix)


def four_bit_stacks(package: Package, make: Matrices) -> dict[str, ExpertStack]:
    """The experts of a package in 4 bits, by the names of the tensors."""

    def matrix(record: TensorRecord) -> Callable[[int], Matrix]:
        if record.codec == "mxfp4":
            return lambda expert: make.mxfp4_draft(package.mxfp4(record, expert))
        return lambda expert: make.bsfp_draft(package.bsfp(record, expert))

    return _stacks(package, lambda record: True, matrix)


def _stacks(
    package: Package, wants: Callable[[TensorRecord], bool], matrix: Callable[[TensorRecord], Callable[[int], Matrix]]
) -> dict[str, ExpertStack]:
    records = [record for record in package.manifest.tensors if record.stack is not None and wants(record)]
    return {record.stem: _stack(record.stack, matrix(record)) for record in records if record.stack is not None}


def _stack(experts: StackedExperts, make: Callable[[int], Matrix]) -> ExpertStack:
    return ExpertStack((experts.num_experts, *experts.matrix_shape), make)


def _dense(tensor: SourceTensor, experts: StackedExperts, make: Matrices) -> Callable[[int], Matrix]:
    stored = cast(U16, tensor.array())
    return lambda expert: make.dense(experts.matrix(stored[expert]), FORMATS[tensor.dtype])


def _repacked(blocks: SourceTensor, scales: SourceTensor, make: Matrices) -> Callable[[int], Matrix]:
    """MXFP4 as a checkpoint has it: an expert becomes tiles, in memory, when it is made."""
    codes, exponents = CarriedTensor("", "codes", blocks.shape), CarriedTensor("", "scales", scales.shape)

    def made(expert: int) -> Matrix:
        first, second = (cast(U8, tensor.array())[expert] for tensor in (blocks, scales))
        stored = StoredMxfp4(codes.stack.matrix_shape, codes.to_tiles(first), exponents.to_tiles(second))
        return make.mxfp4_target(stored)

    return made
