"""The tensors of a GGUF file: name, type, and rows in GGUF's order, piece by piece.

The matrices of all experts of a layer are one tensor of three dimensions, whether a checkpoint stacks them or not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import lcm, prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U8, U16
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_quads, unpack_scales
from mxconv.errors import ModelError
from mxconv.gguf.arrangement import arranged, block_columns, shape_of, source_rows
from mxconv.gguf.gguf_block import BLOCK_BYTES, Q8_0_BYTES, fits_q8_0, pack_blocks, pack_q8_0
from mxconv.gguf.places import TensorPlace
from mxconv.interop.exported import SourceHash
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.report.open_weights import WeightTensor

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

Rows = Callable[[int, int], NDArray[Any]]
GgufType = Literal["F32", "F16", "BF16", "MXFP4", "Q8_0"]
PIECE_BYTES = 4 << 20
BYTES_PER_WEIGHT = {"F32": 4.0, "F16": 2.0, "BF16": 2.0, "MXFP4": BLOCK_BYTES / BLOCK, "Q8_0": Q8_0_BYTES / BLOCK}


@dataclass(frozen=True)
class OutputTensor:
    """One tensor to write.

    Args:
        name: GGUF's.
        shape: (out_features, in_features), (length,) or (num_experts, out_features, in_features); GGUF writes it
            backwards.
        type: of its weights.
        rows: rows [start, stop) as their bytes lie in the file; start is a multiple of `row_multiple`.
        row_multiple: rows that are read together.
        release: forgets rows [start, stop) of the source.
        experts: the matrices of a stack, in order, which then have the rows.
    """

    name: str
    shape: tuple[int, ...]
    type: GgufType
    rows: Rows = field(repr=False)
    row_multiple: int = 1
    release: Callable[[int, int], None] = field(repr=False, default=lambda start, stop: None)
    experts: Sequence["OutputTensor"] = ()

    @property
    def num_bytes(self) -> int:
        return int(prod(self.shape) * BYTES_PER_WEIGHT[self.type])

    @property
    def ggml_type(self) -> "GGMLQuantizationType":
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType[self.type]

    def pieces(self) -> Iterator[U8]:
        """The bytes in order, some megabytes at a time."""
        if self.experts:
            yield from chain.from_iterable(expert.pieces() for expert in self.experts)
            return
        step = max(PIECE_BYTES * self.shape[0] // self.num_bytes // self.row_multiple, 1) * self.row_multiple
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            yield np.ascontiguousarray(self.rows(start, stop)).reshape(-1).view(np.uint8)
            self.release(start, stop)


def made_tensor(name: str, values: F32) -> OutputTensor:
    """A vector that no checkpoint has."""
    return OutputTensor(name, values.shape, "F32", lambda start, stop: values[start:stop])


def stacked(name: str, experts: dict[int, OutputTensor], num_experts: int) -> OutputTensor:
    """One tensor of the matrices of all experts, by their numbers.

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
    return OutputTensor(name, (num_experts, *parts[0].shape), parts[0].type, parts[0].rows, experts=parts)


def sixteen_bit_stack(place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor) -> OutputTensor:
    """A stack of the checkpoint bit for bit, its hash compared; experts are read in their order, each at once."""
    stack = record.stack
    assert stack is not None
    proof, last = SourceHash(package, record), stack.num_experts - 1
    shape = shape_of(place, stack.matrix_shape)

    def expert(number: int) -> OutputTensor:
        def rows(start: int, stop: int) -> U16:
            found = weight.rows(number, number + 1)
            proof.add(found, number == last)
            return arranged(place, np.ascontiguousarray(stack.matrix(found[0])), 0, stack.matrix_shape[0])

        def release(start: int, stop: int) -> None:
            weight.release(number, number + 1)

        return OutputTensor(place.name, shape, weight.dtype, rows, shape[0], release)  # type: ignore[arg-type]  # checked

    return stacked(place.name, {number: expert(number) for number in range(stack.num_experts)}, stack.num_experts)


def four_bit_stack(place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor) -> OutputTensor:
    """The codes of a stack as they are; also of MXFP4 that the checkpoint itself has."""
    assert record.stack is not None
    matrix, count = replace(weight, shape=record.stack.matrix_shape), record.stack.num_experts
    experts = {number: four_bit(place, package, record, matrix, number) for number in range(count)}
    return stacked(place.name, experts, count)


def sixteen_bit(place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor) -> OutputTensor:
    """A matrix bit for bit, its hash compared; a vector as F32, which llama.cpp computes with."""
    is_vector = len(weight.shape) == 1 or place.is_vector
    gguf_type: GgufType = "F32" if is_vector else weight.dtype  # type: ignore[assignment]  # checked
    proof, num_rows = SourceHash(package, record), weight.shape[0]

    def rows(start: int, stop: int) -> NDArray[Any]:
        if place.is_read_whole:
            start, stop = 0, num_rows
        found: NDArray[Any] = weight.rows(start, stop)
        proof.add(found, stop == num_rows)
        found = arranged(place, found, start, num_rows)
        if is_vector and weight.float_format is not None:
            found = weight.float_format.decode(found)
        if place.is_rate:
            found = -np.exp(found)
        return found + np.float32(place.offset) if place.offset else found

    return OutputTensor(place.name, shape_of(place, weight.shape), gguf_type, rows, *_pieces(place, weight))


def four_bit(
    place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor, expert: int | None = None
) -> OutputTensor:
    """The codes as they are, in GGUF's blocks; where those are not whole blocks here, their values.

    `expert` names one of a stack's matrices.
    """
    stored = package.mxfp4(record, expert)
    num_rows, columns = stored.shape
    blocks = block_columns(place, columns)

    def rows(start: int, stop: int) -> U8 | U16:
        if place.is_read_whole:
            start, stop = 0, num_rows
        if blocks is None:  # exact: two significant bits
            return arranged(place, BF16.encode(stored.draft_rows(start, stop)), start, num_rows)
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        codes = unpack_nibbles(stored.codes[tiles])[: stop - start]
        scales = unpack_scales(stored.scales[tiles])[: stop - start]
        if (order := source_rows(place, start, stop, num_rows)) is not None:
            codes, scales = codes[order - start], scales[order - start]
        if place.columns is not None:
            codes = codes.reshape(len(codes), -1, BLOCK)[:, blocks].reshape(len(codes), -1)
            scales = scales[:, blocks]
        return pack_blocks(codes, scales)

    def release(start: int, stop: int) -> None:
        if expert is not None:
            package.release_expert(record, expert)
        elif place.is_read_whole:
            package.release(record, 0, num_rows)
        else:
            package.release(record, start, stop)

    kind: GgufType = "BF16" if blocks is None else "MXFP4"
    return OutputTensor(place.name, shape_of(place, stored.shape), kind, rows, _pieces(place, weight)[0], release)


def eight_bit(place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor) -> OutputTensor:
    """MXINT8 as Q8_0 where that has all its scales and its rows are whole blocks here; else its values, as BF16."""
    stored = package.mxint8(record)
    num_rows, columns = stored.shape
    in_order = place.columns is None and not place.is_read_whole
    is_q8_0 = in_order and columns % BLOCK == 0 and fits_q8_0(stored.elements, stored.scales)

    def rows(start: int, stop: int) -> U8 | U16:
        if place.is_read_whole:
            start, stop = 0, num_rows
        if not is_q8_0:
            return arranged(place, stored.patterns(start, stop), start, num_rows)
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        elements = unpack_quads(stored.elements[tiles])[: stop - start]
        scales = unpack_scales(stored.scales[tiles])[: stop - start]
        if (order := source_rows(place, start, stop, num_rows)) is not None:
            elements, scales = elements[order - start], scales[order - start]
        return pack_q8_0(elements, scales)

    shape = shape_of(place, stored.shape)
    return OutputTensor(place.name, shape, "Q8_0" if is_q8_0 else "BF16", rows, *_pieces(place, weight))


def _pieces(place: TensorPlace, weight: WeightTensor) -> tuple[int, Callable[[int, int], None]]:
    """How many rows are read together, and the function that forgets them."""
    if place.is_read_whole:
        return shape_of(place, weight.shape)[0], lambda start, stop: weight.release(0, weight.shape[0])
    return lcm(TILE_ROWS, 1 if place.order is None else place.order.head_dim), weight.release
