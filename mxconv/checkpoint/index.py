"""The index of a sharded checkpoint: which shard holds which tensor. Checked against the shards both ways."""

import ntpath
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

from mxconv.checkpoint.json_file import read_json_object
from mxconv.checkpoint.tensor import WeightFile
from mxconv.errors import CheckpointError


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard, as a relative path with forward slashes that stays in the index's folder.

    Raises:
        CheckpointError: no index, or a shard path that is absolute or climbs out of the folder.
    """
    weight_map = read_json_object(path, unique_keys=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path}: has no weight_map, or an empty one; an object of tensor names and shard names is required. "
            "Download or export the checkpoint again."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise CheckpointError(
                f"{path}: tensor {name!r} is in {shard!r}; a relative path inside the index's folder is required. "
                "Do not use this checkpoint unless you know who made it."
            )
    return {name: posixpath.normpath(shard) for name, shard in weight_map.items()}


def _stays_inside(shard: str) -> bool:
    """Judged by the text alone, and for every system: no root, no drive, no `..`, no backslash."""
    return (
        bool(posixpath.basename(shard))
        and not shard.startswith("/")
        and not ntpath.splitdrive(shard)[0]
        and not any(character in shard for character in "\\\0")
        and ".." not in shard.split("/")
    )


def resolve_shard(index_path: Path, shard: str) -> Path:
    """Where a shard lies. Its folder must be inside the index's; the file itself may be a symbolic link.

    Raises:
        CheckpointError: there is no such file, or a linked folder leads outside.
    """
    path = index_path.parent / shard
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{index_path}: names shard {shard!r}, which is not there; every shard is required. "
            "Download the missing file."
        )
    folder, root = path.parent.resolve(), index_path.parent.resolve()
    if not folder.is_relative_to(root):
        raise CheckpointError(
            f"{index_path}: shard {shard!r} lies in {folder}; it must lie inside the index's folder. "
            "Do not use this checkpoint unless you know who made it."
        )
    return path


def check_index(index_path: Path, weight_map: Mapping[str, str], shards: Mapping[str, WeightFile]) -> None:
    """Compare the index with the shards that it names.

    Args:
        index_path: for the messages.
        weight_map: tensor name to shard.
        shards: every shard of the map, opened.

    Raises:
        CheckpointError: a tensor is in two shards, or not in the index, or not where the index says.
    """
    holder: dict[str, str] = {}
    for shard, file in shards.items():
        for name in file.entries:
            if name in holder:
                raise CheckpointError(
                    f"{index_path}: tensor {name!r} is in both {holder[name]} and {shard}; it must be in one shard. "
                    "Download or export the checkpoint again."
                )
            if name not in weight_map:
                raise CheckpointError(
                    f"{file.path}: holds tensor {name!r}, which {index_path.name} does not list; "
                    "the index must list every tensor. Download or export the checkpoint again."
                )
            holder[name] = shard
    for name, shard in weight_map.items():
        if holder.get(name) != shard:
            found = f"it is in {holder[name]}" if name in holder else "no shard has it"
            raise CheckpointError(
                f"{index_path}: says that tensor {name!r} is in {shard}, but {found}; index and shards must agree. "
                "Download or export the checkpoint again."
            )
