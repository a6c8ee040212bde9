"""One tensor of a GGUF file: its name and type, and its rows in GGUF's order, given piece by piece."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.gguf.arrangement import arranged, block_columns, shape_of, source_rows
from mxconv.arch.gguf.place import Place
from mxconv.arrays import F32, U8, U16
from mxconv.codecs.float16 import BF16
from mxconv.codecs.gguf_block import BLOCK_BYTES, Q8_0_BYTES, fits_q8_0, pack_blocks, pack_q8_0
from mxconv.codecs.mxfp4 import BLOCK, dequantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_quads, unpack_scales
from mxconv.interop.gguf.source_hash import SourceHash
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
class GgufTensor:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]  # (out_features, in_features) or (length,); GGUF writes it backwards
    type: GgufType
    rows: Rows = field(
        repr=False
    )  # rows [start, stop) as their bytes lie in the file; start a multiple of row_multiple
    row_multiple: int
    release: Callable[[int, int], None] = field(repr=False)

    @property
    def num_bytes(self) -> int:
        return self.shape[0] * self.row_bytes

    @property
    def row_bytes(self) -> int:
        num_weights = self.shape[1] if len(self.shape) == 2 else 1
        return int(num_weights * BYTES_PER_WEIGHT[self.type])

    @property
    def ggml_type(self) -> "GGMLQuantizationType":
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType[self.type]

    def pieces(self) -> Iterator[U8]:
        """The bytes in order, some megabytes at a time."""
        step = max(PIECE_BYTES // self.row_bytes // self.row_multiple, 1) * self.row_multiple
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            yield np.ascontiguousarray(self.rows(start, stop)).reshape(-1).view(np.uint8)
            self.release(start, stop)


def made_tensor(name: str, values: F32) -> GgufTensor:
    """A vector that no checkpoint has."""
    return GgufTensor(name, values.shape, "F32", lambda start, stop: values[start:stop], 1, lambda start, stop: None)


def sixteen_bit(place: Place, package: Package, record: TensorRecord, weight: WeightTensor) -> GgufTensor:
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

    return GgufTensor(place.name, shape_of(place, weight.shape), gguf_type, rows, *_pieces(place, weight))


def four_bit(
    place: Place, package: Package, record: TensorRecord, weight: WeightTensor, expert: int | None = None
) -> GgufTensor:
    """The codes as they are, in GGUF's blocks; where those are not whole blocks here, their values.

    Args:
        place: the tensor's.
        package: holds the codes.
        record: of the tensor.
        weight: its 16 bits.
        expert: whose matrix of a stack.
    """
    stored = package.mxfp4(record, expert)
    num_rows, columns = stored.shape
    blocks = block_columns(place, columns)

    def rows(start: int, stop: int) -> U8 | U16:
        if place.is_read_whole:
            start, stop = 0, num_rows
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        codes = unpack_nibbles(stored.codes[tiles])[: stop - start]
        scales = unpack_scales(stored.scales[tiles])[: stop - start]
        if blocks is None:  # exact: two significant bits
            return arranged(place, BF16.encode(dequantize_mxfp4(codes, scales)[:, :columns]), start, num_rows)
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

    shape = shape_of(place, stored.shape)
    return GgufTensor(
        place.name, shape, "BF16" if blocks is None else "MXFP4", rows, _pieces(place, weight)[0], release
    )


def eight_bit(place: Place, package: Package, record: TensorRecord, weight: WeightTensor) -> GgufTensor:
    """MXINT8 as Q8_0 where that has all its scales and its rows are whole blocks here; else its values, as BF16.

    Args:
        place: the tensor's.
        package: holds the elements.
        record: of the tensor.
        weight: its 16 bits.
    """
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
    return GgufTensor(place.name, shape, "Q8_0" if is_q8_0 else "BF16", rows, *_pieces(place, weight))


def _pieces(place: Place, weight: WeightTensor) -> tuple[int, Callable[[int, int], None]]:
    """How many rows are read together, and what forgets them."""
    if place.is_read_whole:
        return shape_of(place, weight.shape)[0], lambda start, stop: weight.release(0, weight.shape[0])
    return lcm(TILE_ROWS, 1 if place.order is None else place.order.head_dim), weight.release
