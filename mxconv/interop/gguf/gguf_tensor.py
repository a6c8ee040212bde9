"""One tensor of a GGUF file: its name and type, and its rows in GGUF's order, given piece by piece."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U8, U16
from mxconv.checkpoint.manifest import TensorRecord
from mxconv.checkpoint.package import Package
from mxconv.codecs.float16 import BF16
from mxconv.codecs.gguf_block import BLOCK_BYTES, pack_blocks
from mxconv.codecs.mxfp4 import BLOCK, dequantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_scales
from mxconv.errors import PackageError
from mxconv.interop.gguf.places import Place
from mxconv.interop.gguf.row_order import row_multiple, source_rows
from mxconv.report.weights import WeightTensor

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

Rows = Callable[[int, int], NDArray[Any]]
GgufType = Literal["F32", "F16", "BF16", "MXFP4"]
PIECE_BYTES = 4 << 20
BYTES_PER_WEIGHT = {"F32": 4.0, "F16": 2.0, "BF16": 2.0, "MXFP4": BLOCK_BYTES / BLOCK}


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
    digest = hashlib.sha256()
    num_rows = weight.shape[0]

    def rows(start: int, stop: int) -> NDArray[Any]:
        if place.is_transposed:
            start, stop = 0, num_rows
        found: NDArray[Any] = weight.rows(start, stop)
        digest.update(np.ascontiguousarray(found).reshape(-1).view(np.uint8).data)
        if stop == num_rows and digest.hexdigest() != record.sha256 and not record.is_rescaled:
            raise PackageError(
                f"{package.root}: tensor {weight.name}: SHA-256 {digest.hexdigest()[:16]}...; the recorded "
                f"{record.sha256[:16]}... is required. The package or its source is damaged; run mxconv verify."
            )
        if place.order is not None:
            found = found[source_rows(place.order, start, stop, num_rows) - start]
        if place.is_transposed:
            found = found.T
        if is_vector and weight.float_format is not None:
            found = weight.float_format.decode(found)
        return found + np.float32(place.offset) if place.offset else found

    return GgufTensor(place.name, *_layout(place, weight.shape, gguf_type), rows, *_pieces(place, weight))


def four_bit(place: Place, package: Package, record: TensorRecord, weight: WeightTensor) -> GgufTensor:
    """The codes as they are, in GGUF's blocks; where rows are no whole blocks, their values."""
    stored = package.mxfp4(record)
    num_rows, columns = stored.shape
    is_whole = columns % BLOCK == 0 and not place.is_transposed

    def rows(start: int, stop: int) -> U8 | U16:
        if place.is_transposed:
            start, stop = 0, num_rows
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        codes, scales = unpack_nibbles(stored.codes[tiles]), unpack_scales(stored.scales[tiles])
        order = slice(stop - start) if place.order is None else source_rows(place.order, start, stop, num_rows) - start
        codes, scales = codes[order], scales[order]
        if is_whole:
            return pack_blocks(codes, scales)
        patterns = BF16.encode(dequantize_mxfp4(codes, scales)[:, :columns])  # exact: two significant bits
        return patterns.T if place.is_transposed else patterns

    def release(start: int, stop: int) -> None:
        package.release(record, start, stop)

    layout = _layout(place, weight.shape, "MXFP4" if is_whole else "BF16")
    return GgufTensor(place.name, *layout, rows, _pieces(place, weight)[0], release)


def _layout(place: Place, shape: tuple[int, ...], gguf_type: GgufType) -> tuple[tuple[int, ...], GgufType]:
    return tuple(reversed(shape)) if place.is_transposed else shape, gguf_type


def _pieces(place: Place, weight: WeightTensor) -> tuple[int, Callable[[int, int], None]]:
    """How many rows are read together, and what forgets them: of a turned matrix all."""
    if place.is_transposed:
        num_rows, num_columns = weight.shape
        return num_columns, lambda start, stop: weight.release(0, num_rows)
    return lcm(TILE_ROWS, row_multiple(place.order, weight.shape[0])), weight.release
