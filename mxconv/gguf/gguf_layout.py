"""Which tensors of a checkpoint the tensors of a GGUF file make up: the places that the export has, seen from there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_values
from mxconv.arch.required_tensors import required_tensors
from mxconv.checkpoint.stacked import Axes
from mxconv.errors import CheckpointError, ModelError
from mxconv.gguf.architectures import ARCHITECTURES
from mxconv.gguf.derived_config import derive_config, model_type_of
from mxconv.gguf.gguf_header import REMEDY, GgufEntry, GgufHeader, ReadKeys
from mxconv.gguf.metadata import add_keys
from mxconv.gguf.name_map import EMBEDDING, HEAD, TensorPlace, places
from mxconv.gguf.rotations import FACTORS, LONG_FACTORS, SHORT_FACTORS

PIECE = 1 << 20  # elements that are compared at once
Read = Callable[[GgufEntry], NDArray[Any]]


@dataclass(frozen=True)
class OwnTensor:
    """A tensor as the checkpoint has it."""

    shape: tuple[int, ...]  # there
    parts: tuple[tuple[GgufEntry, TensorPlace], ...]  # where in the file its rows and columns are
    axes: Axes | None = None  # of a stack of experts, the matrices' own; None is no stack

    @property
    def entry(self) -> GgufEntry:
        """The first part's; all read as one dtype."""
        return self.parts[0][0]

    @property
    def num_bytes_stored(self) -> int:
        """In the file."""
        return sum(
            (entry.end - entry.begin) // (1 if place.expert is None else entry.shape[0]) for entry, place in self.parts
        )

    @property
    def quantized_type(self) -> str | None:
        """The type of the first part that a quantizer rounded; None where there is none."""
        return next((entry.type.name for entry, _ in self.parts if entry.type.is_rounded), None)


def derive_layout(header: GgufHeader, read: Read, path: Path) -> tuple[dict[str, Any], dict[str, OwnTensor]]:
    """The configuration of a file whose header was checked, and its tensors by their names in a checkpoint.

    `read` gives a tensor as it lies in the file.

    Raises:
        CheckpointError: the architecture is not known, its keys contradict themselves, or a tensor is missing, too
            many, or of another shape.
    """
    entries = {entry.name: entry for entry in header.entries}
    factors = {name: entries.pop(name) for name in (FACTORS, SHORT_FACTORS, LONG_FACTORS) if name in entries}
    keys = ReadKeys(header.values, entries, path)
    architecture = ARCHITECTURES[model_type_of(keys)]
    is_tied = HEAD not in entries or (architecture.head == "own" and _are_equal(entries, read))
    if is_tied:
        entries.pop(HEAD, None)

    def rotations(name: str) -> NDArray[Any] | None:
        return read(factors[name]) if name in factors else None

    config = derive_config(keys, rotations, is_tied)
    num_experts = keys.count("expert_count")
    if num_experts and all(len(entry.shape) < 3 or entry.shape[0] != num_experts for entry in entries.values()):
        keys.reject("expert_count", "as many experts as the tensors have are required")
    try:
        description = describe_values(config)
    except ModelError as error:
        raise CheckpointError(f"{path}: its keys make no configuration ({error}). {REMEDY}") from error
    _check_keys(header.values, description, config, path)
    required = required_tensors(description, ())
    _check_sizes(required, keys)
    known = places(description, architecture)
    found = {name: _own(name, shape, known[name], entries, keys) for name, shape in required.items() if name in known}
    used = {entry.name for own in found.values() for entry, _ in own.parts}
    if others := [name for name in entries if name not in used]:
        raise CheckpointError(
            f"{path}: tensor {others[0]!r} has no place in a {architecture.name} model as the file's keys describe it. "
            f"{REMEDY}"
        )
    return config, found


def _check_sizes(required: Mapping[str, tuple[int, ...]], keys: ReadKeys) -> None:
    """Refuse keys that ask for a tensor larger than all of the file's, before anything of its size is made."""
    num_elements = sum(prod(entry.shape) for entry in keys.tensors.values())
    num_required = sum(map(prod, required.values()))
    for name, shape in required.items():
        if prod(shape) > num_elements:
            raise CheckpointError(
                f"{keys.path}: its keys ask for {name} of {list(shape)}, and all its tensors have {num_elements:,} "
                f"elements; keys of this model are required. {REMEDY}"
            )
    if num_required > 2 * num_elements:  # some share elements, as tied heads do
        raise CheckpointError(
            f"{keys.path}: its keys ask for {len(required):,} tensors of {num_required:,} elements, and all its "
            f"tensors have {num_elements:,}; keys of this model are required. {REMEDY}"
        )


def _own(
    name: str, shape: tuple[int, ...], at: tuple[TensorPlace, ...], entries: Mapping[str, GgufEntry], keys: ReadKeys
) -> OwnTensor:
    """A tensor of that shape, as a decoder reads it, of its parts.

    Raises:
        CheckpointError: a part is missing, of another shape than the keys say, or of another type than the first.
    """
    is_stack = len(shape) == 3 and at[0].shape is None
    parts = []
    for place in at:
        if (entry := entries.get(place.name)) is None:
            raise CheckpointError(
                f"{keys.path}: tensor {place.name!r} is missing; a whole model is required. Download it again."
            )
        required = (shape[0], *place.shape_of(shape[1:])) if is_stack else place.shape_of(shape)
        if place.expert is not None:
            required = (keys.size("expert_count"), *required)
        if [length for length in entry.shape if length != 1] != [length for length in required if length != 1]:
            raise CheckpointError(
                f"{keys.path}: tensor {place.name!r} of shape {list(entry.shape)}; {list(required)} is required in a "
                "model whose keys are as here. Download or export the file again."
            )
        parts.append((replace(entry, shape=required), place))
        if entry.type.dtype != parts[0][0].type.dtype:
            raise CheckpointError(
                f"{keys.path}: tensors {parts[0][0].name!r} and {entry.name!r} are {parts[0][0].type.name} and "
                f"{entry.type.name}; one type is required of what is one tensor, {name}. {REMEDY}"
            )
    axes = ARCHITECTURES[model_type_of(keys)].stacks if is_stack else None
    return OwnTensor((shape[0], shape[2], shape[1]) if axes == "in_out" else shape, tuple(parts), axes)


def _are_equal(entries: Mapping[str, GgufEntry], read: Read) -> bool:
    """Whether the output head is the embedding once more, which llama.cpp asks for in some architectures."""
    embedding, head = entries.get(EMBEDDING), entries[HEAD]
    if embedding is None or (embedding.type, embedding.shape) != (head.type, head.shape):
        return False
    ours, theirs = (read(entry).reshape(-1) for entry in (embedding, head))
    return all(
        np.array_equal(ours[start : start + PIECE], theirs[start : start + PIECE], equal_nan=False)
        for start in range(0, ours.size, PIECE)
    )


def _check_keys(values: Mapping[str, Any], config: ModelConfig, own: dict[str, Any], path: Path) -> None:
    """Refuse keys that say something else than the export would write of this configuration."""
    from gguf import GGUFWriter

    writer = GGUFWriter(None, str(values["general.architecture"]))
    positions = own.get("max_position_embeddings", config.max_position_embeddings)
    add_keys(writer, config, ARCHITECTURES[config.model_type], positions)
    for key, expected in writer.kv_data[0].items():
        if key in values and not _agree(values[key], expected.value):
            raise CheckpointError(
                f"{path}: {key} is {str(values[key])[:80]}; {str(expected.value)[:80]} is required of a model whose "
                f"other keys are as here. {REMEDY}"
            )


def _agree(found: Any, expected: Any) -> bool:
    """Whether two values are one as far as float32 tells; a number says the same as a list of that number."""
    if isinstance(found, str) or isinstance(expected, str):
        return bool(found == expected)
    one, other = (np.asarray(value, np.float64) for value in (found, expected))
    return bool(one.ndim == 0 or other.ndim == 0 or one.shape == other.shape) and bool(np.allclose(one, other, 1e-6, 0))
