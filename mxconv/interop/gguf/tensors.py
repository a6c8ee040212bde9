"""The tensors of a level under GGUF's names, types and row order, given piece by piece."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import lcm
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8, U16
from mxconv.checkpoint.gguf.names import EMBEDDING, HEAD, ROPE_FACTORS, has_paired_rows, to_gguf
from mxconv.checkpoint.gguf.rope_factors import llama3_factors
from mxconv.checkpoint.gguf.rope_rows import hf_rows
from mxconv.checkpoint.manifest import TensorRecord
from mxconv.checkpoint.package import Package
from mxconv.codecs.float16 import BF16
from mxconv.codecs.gguf_block import BLOCK_BYTES, pack_blocks
from mxconv.codecs.mxfp4 import BLOCK, dequantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_scales
from mxconv.errors import ModelError, PackageError
from mxconv.interop.gguf.metadata import Metadata
from mxconv.model.config import ModelConfig
from mxconv.report.weights import Weights, WeightTensor

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

Level = Literal["target", "draft"]
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


def level_tensors(
    package: Package, weights: Weights, metadata: Metadata, level: Level
) -> tuple[list[GgufTensor], tuple[str, ...]]:
    """The tensors of a file, and what the user should know about them.

    Args:
        package: open.
        weights: the 16-bit weights, in the package or where it references them.
        metadata: names the architecture.
        level: the 16-bit target, or the MXFP4 draft.

    Raises:
        ModelError: a tensor has no place in llama.cpp's model.
    """
    tensors: list[GgufTensor] = []
    unaligned, skipped = [], []
    records = {record.name: record for record in package.manifest.tensors}
    for weight in weights.tensors:
        name = to_gguf(weight.name)
        if name is None:
            skipped.append(weight.name)
            continue
        _check_known(name, weight, metadata)
        paired = has_paired_rows(metadata.architecture, name)
        head_dim = metadata.config.head_dim if paired else None
        record = records[weight.name]
        if level == "target" or record.codec == "keep":
            tensors.append(_sixteen_bit(name, package, record, weight, head_dim))
            continue
        if name == EMBEDDING:  # the draft's output head is quantized, its embedding is not
            tensors.append(_sixteen_bit(name, package, record, weight, None))
            name = HEAD
        tensors.append(_mxfp4(name, package, record, head_dim))
        if tensors[-1].type != "MXFP4":
            unaligned.append(weight.name)
    if metadata.config.rope.rope_type == "llama3":
        tensors.append(_rope_factors(metadata.config))
    return tensors, _notes(unaligned, skipped)


def _notes(unaligned: list[str], skipped: list[str]) -> tuple[str, ...]:
    notes = []
    if unaligned:
        notes.append(
            f"{len(unaligned)} matrices, such as {unaligned[0]}, have in_features that are no multiple of 32, which "
            "GGUF's MXFP4 requires: their 4-bit values are stored as BF16, exactly."
        )
    if skipped:
        notes.append(f"left out {len(skipped)} tensors that llama.cpp does not have, such as {skipped[0]}.")
    return tuple(notes)


def _check_known(name: str, weight: WeightTensor, metadata: Metadata) -> None:
    """llama.cpp refuses a file with a tensor that it did not ask for; it may also be of a type without a place."""
    module, _, parameter = name.rpartition(".")
    kind = module.rpartition(".")[2]
    has_bias = metadata.architecture == "llama" or kind in ("attn_q", "attn_k", "attn_v")
    is_norm = kind.endswith("_norm")
    if (parameter == "bias" and (is_norm or not has_bias or not name.startswith("blk."))) or (
        kind in ("attn_q_norm", "attn_k_norm") and metadata.architecture != "qwen3"
    ):
        raise ModelError(
            f"tensor {weight.name}: llama.cpp's {metadata.architecture} has no {name}; GGUF can hold this model only "
            "without it. Export with --to safetensors."
        )
    if weight.dtype not in ("BF16", "F16", "F32") or len(weight.shape) not in (1, 2) or 0 in weight.shape:
        raise ModelError(
            f"tensor {weight.name}: {weight.dtype} {list(weight.shape)}; a vector or matrix of BF16, F16 or F32 is "
            "required. Export with --to safetensors."
        )


def _sixteen_bit(
    name: str, package: Package, record: TensorRecord, weight: WeightTensor, head_dim: int | None
) -> GgufTensor:
    """A matrix bit for bit, its hash compared; a vector as F32, which llama.cpp computes with."""
    gguf_type: GgufType = "F32" if len(weight.shape) == 1 else weight.dtype  # type: ignore[assignment]  # checked
    digest = hashlib.sha256()

    def rows(start: int, stop: int) -> NDArray[Any]:
        found: NDArray[Any] = weight.rows(start, stop)
        digest.update(np.ascontiguousarray(found).reshape(-1).view(np.uint8).data)
        if stop == weight.shape[0] and digest.hexdigest() != record.sha256 and not record.is_rescaled:
            raise PackageError(
                f"{package.root}: tensor {weight.name}: SHA-256 {digest.hexdigest()[:16]}...; the recorded "
                f"{record.sha256[:16]}... is required. The package or its source is damaged; run mxconv verify."
            )
        if head_dim is not None:
            found = found[hf_rows(start, stop, head_dim) - start]
        if len(weight.shape) == 1 and weight.float_format is not None:
            return weight.float_format.decode(found)
        return found

    multiple = lcm(TILE_ROWS, head_dim or 1)
    return GgufTensor(name, weight.shape, gguf_type, rows, multiple, weight.release)


def _mxfp4(name: str, package: Package, record: TensorRecord, head_dim: int | None) -> GgufTensor:
    """The codes as they are, in GGUF's blocks; where rows are no whole blocks, their values."""
    stored = package.mxfp4(record)
    columns = stored.shape[1]
    is_whole = columns % BLOCK == 0

    def rows(start: int, stop: int) -> U8 | U16:
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        codes, scales = unpack_nibbles(stored.codes[tiles]), unpack_scales(stored.scales[tiles])
        order = hf_rows(start, stop, head_dim) - start if head_dim is not None else slice(stop - start)
        codes, scales = codes[order], scales[order]
        if is_whole:
            return pack_blocks(codes, scales)
        return BF16.encode(dequantize_mxfp4(codes, scales)[:, :columns])  # exact: two significant bits

    def release(start: int, stop: int) -> None:
        package.release(record, start, stop)

    multiple = lcm(TILE_ROWS, head_dim or 1)
    return GgufTensor(name, stored.shape, "MXFP4" if is_whole else "BF16", rows, multiple, release)


def _rope_factors(config: ModelConfig) -> GgufTensor:
    rope = config.rope
    factors = llama3_factors(
        config.head_dim,
        rope.theta,
        rope.factor,
        rope.low_freq_factor,
        rope.high_freq_factor,
        rope.original_max_position_embeddings,
    )
    return GgufTensor(ROPE_FACTORS, factors.shape, "F32", lambda a, b: factors[a:b], 1, lambda a, b: None)
