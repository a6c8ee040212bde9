import json
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_index, write_safetensors, write_sharded

from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import CheckpointError


def error_of(source: str | Path, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source, revision=revision)
    return str(caught.value)


def sharded(folder: Path) -> tuple[Path, dict[str, str]]:
    write_sharded(folder, {name: np.full(2, i, np.float16) for i, name in enumerate("abcd")}, 2)
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())["weight_map"]


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    path, _ = sharded(tmp_path)
    (tmp_path / TWO).unlink()
    assert error_of(tmp_path) == (
        f"{path}: names shard '{TWO}', which is not there; every shard is required. Download the missing file."
    )


@pytest.mark.parametrize(
    "shard",
    [
        "/etc/passwd",
        "../x.safetensors",
        "a/../../x.safetensors",
        "..",
        "C:x.safetensors",
        "a\\b",
        "a\0",
        "",
        "a/",
        5,
        None,
    ],
)
def test_a_shard_path_that_climbs_out_of_the_folder_is_refused(tmp_path: Path, shard: object) -> None:
    path, weight_map = sharded(tmp_path)
    write_index(tmp_path, weight_map | {"a": shard})
    assert error_of(tmp_path) == (
        f"{path}: tensor 'a' is in {shard!r}; a relative path inside the index's folder is required. "
        "Do not use this checkpoint unless you know who made it."
    )


def test_a_shard_in_a_linked_folder_outside_is_refused(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    write_safetensors(outside / "a.safetensors", {"a": np.ones(1, np.float16)})
    folder.mkdir()
    (folder / "inside").symlink_to(outside)
    path = write_index(folder, {"a": "inside/a.safetensors"})
    assert error_of(folder) == (
        f"{path}: shard 'inside/a.safetensors' lies in {outside}; it must lie inside the index's folder. "
        "Do not use this checkpoint unless you know who made it."
    )


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    path = write_index(tmp_path, weight_map)
    assert error_of(tmp_path) == (
        f"{path}: has no weight_map, or an empty one; an object of tensor names and shard names is required. "
        "Download or export the checkpoint again."
    )


def test_a_tensor_listed_twice_is_refused(tmp_path: Path) -> None:
    path, _ = sharded(tmp_path)
    path.write_text(f'{{"weight_map": {{"a": "{ONE}", "a": "{TWO}"}}}}')
    assert error_of(tmp_path) == (
        f"{path}: the JSON key 'a' occurs twice in one object; keys must be unique. Download or export the file again."
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"e": ONE}, f"{{path}}: says that tensor 'e' is in {ONE}, but no shard has it; index and shards must agree. "),
        ({"a": TWO}, f"{{path}}: says that tensor 'a' is in {TWO}, but it is in {ONE}; index and shards must agree. "),
        (
            {"c": None},
            f"{{folder}}/{ONE}: holds tensor 'c', which model.safetensors.index.json does not list; the index must "
            "list every tensor. ",
        ),
    ],
)
def test_an_index_that_does_not_agree_with_its_shards_is_refused(
    tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    path, weight_map = sharded(tmp_path)
    write_index(tmp_path, {name: shard for name, shard in (weight_map | change).items() if shard is not None})
    expected = message.format(path=path, folder=tmp_path) + "Download or export the checkpoint again."
    assert error_of(tmp_path) == expected


def test_a_tensor_in_two_shards_is_refused_and_a_damaged_shard_named(tmp_path: Path) -> None:
    path, _ = sharded(tmp_path)
    write_safetensors(tmp_path / TWO, {name: np.ones(2, np.float16) for name in "abd"})
    assert error_of(tmp_path) == (
        f"{path}: tensor 'a' is in both {ONE} and {TWO}; it must be in one shard. "
        "Download or export the checkpoint again."
    )
    os.truncate(tmp_path / TWO, 100)
    assert error_of(tmp_path).startswith(f"{tmp_path / TWO}: ")
