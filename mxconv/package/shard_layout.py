"""Every array's place in its file, decided before anything is written."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mxconv.checkpoint.safetensors_header import format_header
from mxconv.errors import CheckpointError
from mxconv.package.stored import StoredArray

MAX_ALIGNMENT = 64
RESERVED = "__metadata__"
HEADER_BYTES = 192  # of a header without entries, padding included
ENTRY_BYTES = 112  # of an entry: punctuation, the longest dtype, offsets below 10^20


@dataclass(frozen=True)
class Shard:
    """One safetensors file to write."""

    file_name: str
    header: bytes
    offsets: dict[str, int]  # array name to its byte offset in the file
    num_bytes: int


@dataclass(frozen=True)
class ShardLayout:
    """All files that a conversion writes, and the arrays of each tensor."""

    shards: tuple[Shard, ...]
    arrays: dict[str, tuple[StoredArray, ...]]  # by tensor name; empty where the tensor is linked or referenced
    indexes: dict[str, bytes]  # index file name to its content

    @property
    def places(self) -> dict[str, tuple[Shard, int]]:
        """Array name to its shard and offset."""
        return {name: (shard, offset) for shard in self.shards for name, offset in shard.offsets.items()}

    @property
    def tensors(self) -> dict[str, dict[str, list[str]]]:
        """The tensors of each shard, by its name, and the names of their arrays there."""
        found: dict[str, dict[str, list[str]]] = {shard.file_name: {} for shard in self.shards}
        places = self.places
        for tensor, arrays in self.arrays.items():
            for array in arrays:
                found[places[array.name][0].file_name].setdefault(tensor, []).append(array.name)
        return found


def plan_layout(
    groups: dict[str, dict[str, tuple[StoredArray, ...]]], max_shard_bytes: int, format_name: str = "mxconv"
) -> ShardLayout:
    """Distribute arrays over shards.

    Args:
        groups: file stem ("bsfp", "mxfp4", "model") to the arrays of each tensor in it.
        max_shard_bytes: a shard is closed before its file would grow beyond; a single tensor may still exceed it.
        format_name: what the shards' metadata call their `format`; others' libraries ask for "pt".

    Raises:
        CheckpointError: two arrays would have the same name, or one the name that safetensors keeps for itself.
    """
    _check_names([array.name for tensors in groups.values() for parts in tensors.values() for array in parts])
    shards: list[Shard] = []
    arrays: dict[str, tuple[StoredArray, ...]] = {}
    indexes: dict[str, bytes] = {}
    for stem, tensors in groups.items():
        contents = _fill(list(tensors.values()), max_shard_bytes)
        written = []
        for number, content in enumerate(contents, 1):
            single = len(contents) == 1
            name = f"{stem}.safetensors" if single else f"{stem}-{number:05d}-of-{len(contents):05d}.safetensors"
            written.append(_shard(name, content, format_name))
        if len(written) > 1:
            indexes[f"{stem}.safetensors.index.json"] = _index(written)
        shards += written
        for tensor, parts in tensors.items():
            arrays[tensor] = arrays.get(tensor, ()) + parts
    return ShardLayout(tuple(shards), arrays, indexes)


def _check_names(names: list[str]) -> None:
    if RESERVED in names:
        raise CheckpointError(
            f"tensor {RESERVED}: safetensors keeps this name for a file's metadata; another name is required. "
            "Rename the tensor in the checkpoint."
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(
            f"tensor {twice}: its name is also that of an array that mxconv writes; unique names are required. "
            "Rename the tensor in the checkpoint."
        )


def _fill(tensors: Sequence[tuple[StoredArray, ...]], max_bytes: int) -> list[list[StoredArray]]:
    """Arrays by shard; the arrays of a tensor stay together."""
    contents: list[list[StoredArray]] = [[]]
    filled = HEADER_BYTES
    for parts in tensors:
        num_bytes = _filled_by(parts)
        if contents[-1] and filled + num_bytes > max_bytes:
            contents.append([])
            filled = HEADER_BYTES
        contents[-1] += parts
        filled += num_bytes
    return [content for content in contents if content]


def smallest_limit(shards: Iterable[Sequence[Sequence[StoredArray]]]) -> int:
    """The smallest `max_shard_bytes` that gives these shards, each the arrays of its tensors: `plan_layout` closed each
    before a tensor that would not fit, and none of them can hold more under a smaller limit."""
    filled = [HEADER_BYTES + sum(map(_filled_by, tensors)) for tensors in shards if len(tensors) > 1]
    return max(filled, default=1)


def _filled_by(parts: Sequence[StoredArray]) -> int:
    """At least as many bytes as a tensor's arrays take in a file."""
    return sum(array.num_bytes + _entry_bytes(array) for array in parts)


def _entry_bytes(array: StoredArray) -> int:
    """At least as many bytes as an array takes in a header."""
    return len(json.dumps([array.name, array.shape])) + ENTRY_BYTES


def _shard(file_name: str, content: list[StoredArray], format_name: str) -> Shard:
    """Arrays ordered so that each begins at a multiple of the largest power of two (at most 64) in its length."""
    ordered = sorted(content, key=lambda array: (-_alignment(array.num_bytes), array.name))
    entries = [(array.name, array.dtype, array.shape) for array in ordered]
    header, offsets = format_header(entries, {"format": format_name})
    num_bytes = len(header) + sum(array.num_bytes for array in ordered)
    return Shard(file_name, header, dict(zip((a.name for a in ordered), offsets, strict=True)), num_bytes)


def _alignment(num_bytes: int) -> int:
    """The largest power of two that divides a length, at most 64."""
    return min(num_bytes & -num_bytes, MAX_ALIGNMENT) if num_bytes else MAX_ALIGNMENT


def _index(shards: list[Shard]) -> bytes:
    """The index that Hugging Face libraries expect beside shards."""
    weight_map = {name: shard.file_name for shard in shards for name in shard.offsets}
    total = sum(shard.num_bytes - len(shard.header) for shard in shards)
    members = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(members, indent=1).encode()
