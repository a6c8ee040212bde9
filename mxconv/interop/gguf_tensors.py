"""The tensors of a level under GGUF's names, types and row order, piece by piece.

A matrix is read as *cells*: its values, or where GGUF has a type for its codes the blocks of 32 that these become. Rows
and columns of cells then go where `mxconv.gguf.name_map` says. The matrices of all experts of a layer are one tensor of
three dimensions, whether a checkpoint stacks them or not.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import lcm, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_quads, unpack_scales
from mxconv.errors import ModelError
from mxconv.gguf.architectures import first_mixture
from mxconv.gguf.ggml_type import BLOCK_BYTES, Q8_0_BYTES, fits_q8_0, pack_blocks, pack_q8_0
from mxconv.gguf.metadata import Metadata
from mxconv.gguf.name_map import EMBEDDING, HEAD, TensorPlace, places
from mxconv.gguf.rotations import rope_tensors
from mxconv.interop.exported import ExportedTensor, SourceHash
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.report.open_weights import OpenWeights, WeightTensor

Level = Literal["target", "draft"]
Places = Mapping[str, tuple[TensorPlace, ...]]
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
PIECE_WEIGHTS = 1 << 21


@dataclass(frozen=True)
class CellMatrix:
    """A vector or a matrix in the checkpoint's order, as GGUF's cells."""

    place: TensorPlace
    type: str  # GGUF's
    shape: tuple[int, ...]  # in the checkpoint
    cells: Callable[[int, int], NDArray[Any]]  # rows [start, stop): values, or (rows, blocks, bytes)
    release: Callable[[int, int], None]  # forgets rows [start, stop)
    is_read_whole: bool = False

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The cells as they lie in the file, some megabytes at a time."""
        num_rows, columns, step = self.shape[0], self.place.columns, self.shape[0]
        if columns is not None and self.type in ("MXFP4", "Q8_0"):
            columns = self.place.block_columns(self.shape[1])
        if not self.is_read_whole and not self.place.is_read_whole:
            multiple = lcm(TILE_ROWS, self.place.head_rows or 1)
            step = max(PIECE_WEIGHTS // prod(self.shape[1:]) // multiple, 1) * multiple
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            yield self.place.arranged(self.cells(start, stop), start, columns)
            self.release(start, stop)


def level_tensors(
    package: Package, weights: OpenWeights, metadata: Metadata, level: Level
) -> tuple[list[ExportedTensor], list[str]]:
    """The tensors of a file, and what the user should know about them.

    Args:
        package: open.
        weights: the 16-bit weights, in the package or where it references them.
        metadata: names the architecture.
        level: the 16-bit target, or the MXFP4 draft.

    Raises:
        ModelError: a tensor has no place in llama.cpp's model, or experts are missing or unlike each other.
    """
    records = {record.name: record for record in package.manifest.tensors}
    known = places(metadata.config, metadata.architecture)
    matrices: dict[str, list[CellMatrix]] = defaultdict(list)  # by GGUF's name: one, or those of all experts
    skipped: list[str] = []
    for weight in weights.tensors:
        record, name = records[weight.name], metadata.config.own_name(weight.name)
        if record.carried is not None and record.carried.part == "scales":
            continue  # written with the codes that they are of
        if not (at := () if name is None else known.get(name, ())):
            _check_is_none_of_its_own(name, weight, metadata)
            skipped.append(weight.name)
        for place in at:
            for matrix in _matrices(place, package, record, weight, metadata, level):
                matrices[matrix.place.name].append(matrix)
    mixture = first_mixture(metadata.config)
    num_experts = 0 if mixture is None else mixture.routing.num_experts
    tensors = [_tensor(name, parts, num_experts) for name, parts in matrices.items()]
    for name, factors in rope_tensors(metadata.config, metadata.architecture, metadata.long_factors).items():
        tensors.append(ExportedTensor(name, "F32", factors.shape, partial(iter, (factors,))))
    notes = _draft_notes(package, metadata, known) if level == "draft" else []
    if skipped:
        notes.append(f"left out {len(skipped)} tensors that llama.cpp does not have, such as {skipped[0]}.")
    return tensors, notes


def _tensor(name: str, parts: list[CellMatrix], num_experts: int) -> ExportedTensor:
    """A tensor of one matrix, or of those of all experts, by their numbers."""
    shape = parts[0].place.shape_of(parts[0].shape)
    if parts[0].place.expert is not None:
        experts = {part.place.expert: part for part in parts}
        if missing := sorted({*range(num_experts)} - {*experts}):
            raise ModelError(
                f"{name}: expert {missing[0]} is missing; all {num_experts} are required. Convert the model again."
            )
        parts, shape = [experts[number] for number in range(num_experts)], (num_experts, *shape)
        if len(kinds := {(part.shape, part.type) for part in parts}) > 1:
            raise ModelError(
                f"{name}: experts of {len(kinds)} shapes or types; one is required. Export with --to safetensors."
            )
    return ExportedTensor(name, parts[0].type, shape, lambda: chain.from_iterable(part.pieces() for part in parts))


def _matrices(
    place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor, metadata: Metadata, level: Level
) -> list[CellMatrix]:
    """The matrices of one weight: its own, one an expert of a stack, or where it is the output head too, both."""
    is_exact = record.carried is None and (level == "target" or not record.is_quantized)
    if place.name == EMBEDDING:  # a draft's is exact, its output head is not
        is_tied, head = metadata.config.tie_word_embeddings, metadata.architecture.head
        has_head = is_tied and head != "embedding" and not (is_exact and head == "optional")
        of_head = replace(place, name=HEAD)
        again = _matrices(of_head, package, record, weight, metadata, level) if has_head else []
        return [_exact_matrix(place, package, record, weight), *again]
    if record.stack is not None:
        at = [replace(place, expert=number) for number in range(record.stack.num_experts)]
        if is_exact:
            return _exact_stack(at, package, record, weight)
        return [_four_bit_matrix(each, package, record, each.expert) for each in at]
    if is_exact:
        return [_exact_matrix(place, package, record, weight)]
    return [(_four_bit_matrix if record.codec == "mxfp4" else _eight_bit_matrix)(place, package, record)]


def _exact_matrix(place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor) -> CellMatrix:
    """A matrix bit for bit, its hash compared; a vector as F32, which llama.cpp computes with."""
    is_vector = len(weight.shape) == 1 or place.is_vector
    proof, num_rows = SourceHash(package, record), weight.shape[0]

    def cells(start: int, stop: int) -> NDArray[Any]:
        found: NDArray[Any] = weight.rows(start, stop)
        proof.add(found, stop == num_rows)
        if is_vector and weight.float_format is not None:
            found = weight.float_format.decode(found)
        if place.is_rate:
            found = -np.exp(found)
        return found + np.float32(place.offset) if place.offset else found

    return CellMatrix(place, "F32" if is_vector else weight.dtype, weight.shape, cells, weight.release)


def _exact_stack(
    at: list[TensorPlace], package: Package, record: TensorRecord, weight: WeightTensor
) -> list[CellMatrix]:
    """A stack bit for bit, its hash compared; experts are read in their order, each at once."""
    stack = record.stack
    assert stack is not None
    proof = SourceHash(package, record)

    def cells(number: int, start: int, stop: int) -> NDArray[Any]:
        found = weight.rows(number, number + 1)
        proof.add(found, number == len(at) - 1)
        return np.ascontiguousarray(stack.matrix(found[0]))

    def release(number: int, start: int, stop: int) -> None:
        weight.release(number, number + 1)

    return [
        CellMatrix(place, weight.dtype, stack.matrix_shape, partial(cells, number), partial(release, number), True)
        for number, place in enumerate(at)
    ]


def _four_bit_matrix(
    place: TensorPlace, package: Package, record: TensorRecord, expert: int | None = None
) -> CellMatrix:
    """Codes in GGUF's blocks, or where those are not whole there as values; `expert` is one of a stack."""
    stored = package.mxfp4(record, expert)
    has_blocks = place.block_columns(stored.shape[1]) is not None

    def cells(start: int, stop: int) -> NDArray[Any]:
        if not has_blocks:
            return BF16.encode(stored.draft_rows(start, stop))  # exact: two significant bits
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        codes, scales = unpack_nibbles(stored.codes[tiles]), unpack_scales(stored.scales[tiles])
        return pack_blocks(codes[: stop - start], scales[: stop - start]).reshape(stop - start, -1, BLOCK_BYTES)

    def release(start: int, stop: int) -> None:
        if expert is None:
            package.release(record, start, stop)
        else:
            package.release_expert(record, expert)

    return CellMatrix(place, "MXFP4" if has_blocks else "BF16", stored.shape, cells, release)


def _eight_bit_matrix(place: TensorPlace, package: Package, record: TensorRecord) -> CellMatrix:
    """MXINT8 as Q8_0 where that has all its scales and its rows are whole blocks here; else its values, as BF16."""
    stored = package.mxint8(record)
    has_blocks = place.block_columns(stored.shape[1]) is not None and fits_q8_0(stored.elements, stored.scales)

    def cells(start: int, stop: int) -> NDArray[Any]:
        if not has_blocks:
            return stored.patterns(start, stop)
        tiles = slice(start // TILE_ROWS, -(-stop // TILE_ROWS))
        elements, scales = unpack_quads(stored.elements[tiles]), unpack_scales(stored.scales[tiles])
        return pack_q8_0(elements[: stop - start], scales[: stop - start]).reshape(stop - start, -1, Q8_0_BYTES)

    kind = "Q8_0" if has_blocks else "BF16"
    return CellMatrix(place, kind, stored.shape, cells, lambda start, stop: package.release(record, start, stop))


def _draft_notes(package: Package, metadata: Metadata, known: Places) -> list[str]:
    """Notes on matrices whose 4-bit values become BF16, and on an output head that is the embedding."""
    widened: dict[str, list[str]] = defaultdict(list)
    notes, architecture = [], metadata.architecture
    for record in package.manifest.tensors:
        at = known.get(metadata.config.own_name(record.name) or "", ())[:1]
        columns = record.shape[-1] if record.stack is None else record.stack.matrix_shape[1]
        for place in at if record.codec == "mxfp4" else ():
            if columns % BLOCK:
                widened["have in_features that are no multiple of 32, which GGUF's MXFP4 requires"].append(record.name)
            elif place.is_transposed:
                widened["are stored turned, so that GGUF's blocks lie across theirs"].append(record.name)
            elif place.block_columns(columns) is None:
                reason = "have heads in another order, of values that are no whole blocks of 32"
                widened[reason].append(record.name)
        if architecture.head == "embedding" and any(place.name == EMBEDDING for place in at) and record.is_quantized:
            notes.append(
                f"llama.cpp's {architecture.name} has no output head of its own: the draft's is the embedding in 16 "
                "bits."
            )
    of_matrices = [
        f"{len(names)} matrices, such as {names[0]}, {reason}: their 4-bit values are stored as BF16, exactly."
        for reason, names in widened.items()
    ]
    return of_matrices + notes


def _check_is_none_of_its_own(name: str | None, weight: WeightTensor, metadata: Metadata) -> None:
    """Refuse a tensor of this decoder without a place; one of another tower, or a buffer, may be left out."""
    config = metadata.config
    roots = (f"{config.layer_prefix}.", f"{config.head}.")
    if name is None or not name.startswith(roots) or not name.endswith((".weight", ".bias")) or name.endswith(BUFFERS):
        return
    if config.mtp is not None and config.mtp.has(name):  # what predicts further tokens
        return
    if name == f"{config.head}.weight":  # of a model whose head is the embedding: older checkpoints hold both
        return
    raise ModelError(
        f"tensor {weight.name}: llama.cpp's {metadata.architecture.name} has no place for it in a model as config.json "
        "describes it; GGUF can hold this model only without it. Export with --to safetensors."
    )
