"""Packages that are written to a store: the bytes of those that a folder gets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from commands import run_without_torch
from packages import files_of, quantize
from s3_server import BUCKET, S3Server, store

from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.worker_memory import STORE_BYTES
from mxconv.convert import convert
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.package.target import parse_target
from mxconv.rebuild import build, check_rebuild, write_recipe

MODEL = "model-00002-of-00003.safetensors"
OPTIONS = [
    {"codec": "mxfp4", "max_shard_bytes": 9000},
    {"codec": "bsfp", "max_shard_bytes": 60_000},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", num_shards=3)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["codec"])
def test_a_package_has_the_bytes_that_a_folder_gets(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, scratch: Path, options: dict[str, Any]
) -> None:
    quantize(source, tmp_path / "p", **options)
    quantize(source, store(folder), num_threads=2, **options)
    found = s3.files(folder)
    assert len([name for name in found if name.startswith(options["codec"])]) > 2
    assert found == files_of(tmp_path / "p")
    assert s3.unfinished_uploads(folder) == []
    assert not list(scratch.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "mxfp4", "dtype": "bf16", "max_shard_bytes": 30_000},  # the target in shards of its own
        {"codec": "bsfp", "drafts": ("prompt-lookup",)},
    ],
    ids=lambda options: options["codec"],
)
def test_rounded_weights_in_small_pieces(
    s3: S3Server, folder: str, tmp_path: Path, small_parts: None, options: dict[str, Any]
) -> None:
    source = write_tiny_llama(tmp_path / "m", dtype="F32" if "dtype" in options else "F16")
    quantize(source, tmp_path / "p", **options)
    quantize(source, store(folder), num_threads=3, **options)
    assert s3.files(folder) == files_of(tmp_path / "p")
    assert s3.unfinished_uploads(folder) == []


def test_a_draft_model_goes_along(s3: S3Server, folder: str, tmp_path: Path) -> None:
    draft = write_tiny_llama(tmp_path / "draft", seed=3, num_hidden_layers=1)
    source = write_tiny_llama(tmp_path / "m")
    options: dict[str, Any] = {"codec": "bsfp", "drafts": (f"checkpoint:{draft}",)}
    quantize(source, tmp_path / "p", **options)
    quantize(source, store(folder), **options)
    found = s3.files(folder)
    assert "drafts/1-draft/model.safetensors" in found
    assert found == files_of(tmp_path / "p")


def test_what_is_no_place_for_a_package_is_refused(s3: S3Server, folder: str, source: Path) -> None:
    quantize(source, store(f"{folder}/there"))
    for force in (False, True):
        with pytest.raises(PackageError, match=r"there: a package is there; on a store one cannot be replaced"):
            quantize(source, store(f"{folder}/there"), force=force)
    with pytest.raises(PackageError, match=r"holds there/.*; an empty place is required\. Choose another"):
        quantize(source, store(folder))
    with pytest.raises(PackageError, match=r"s3://bucket: names a bucket; .* Write s3://bucket/FOLDER"):
        quantize(source, Store("s3://bucket", PackageError))
    with pytest.raises(PackageError, match=r"s3://nowhere/p.*: no such object or bucket; an existing one is required"):
        quantize(source, Store("s3://nowhere/p", PackageError))


def test_a_weight_that_is_not_finite_leaves_nothing(s3: S3Server, folder: str, tmp_path: Path) -> None:
    tensors = {f"w{n}": np.zeros((64, 64), np.float16) for n in range(4)}
    tensors["w2"][3, 5] = np.inf
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"tensor w2 holds inf at index \[3, 5\]"):
        quantize(source, store(folder))
    assert s3.files(folder) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf://me/model", "packages are not written to the Hub .* send it with `mxconv push`"),
        ("memory://here/p", "ends with this command; a folder or a store is required"),
        ("ftp://host/p", "protocol 'ftp'; one of s3, .* is required"),
        ("s3://", "names no folder"),
        ("s3://bucket/../other", "names no folder"),
        ("file:///tmp/p", "Leave file:// out"),
    ],
)
def test_what_no_package_can_be_written_to_is_refused(text: str, message: str) -> None:
    with pytest.raises(MxconvError, match=message):
        parse_target(text)


def test_a_dry_run_counts_what_a_store_takes_and_writes_nothing(
    s3: S3Server, folder: str, source: Path, tmp_path: Path
) -> None:
    def plan(output: str) -> Any:
        done = run_without_torch("quantize", str(source), "-o", output, "--codec", "bsfp", "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    here, there = plan(str(tmp_path / "p")), plan(f"s3://{BUCKET}/{folder}")
    assert there["package"] == f"s3://{BUCKET}/{folder}"
    assert there["worker_bytes"] == here["worker_bytes"] + STORE_BYTES
    assert s3.files(folder) == {}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_recipe_gives_the_same_package_from_a_store_and_on_one(
    s3: S3Server, folder: str, source: Path, tmp_path: Path, codec: str
) -> None:
    """Made of a folder and of a store, whose MXFP4 package has a target in files of its own."""
    for path in source.iterdir():
        s3.put(f"{folder}/source/{path.name}", path.read_bytes())
    url = f"s3://{BUCKET}/{folder}/source"
    for name, origin in (("by-folder", str(source)), ("by-store", url)):
        with open_checkpoint(origin) as checkpoint:
            convert(checkpoint, tmp_path / name, QuantizeOptions(codec=codec))
        write_recipe(tmp_path / name, tmp_path / f"{name}.json")
        for number, other in enumerate((str(source), url)):
            build(tmp_path / f"{name}.json", tmp_path / f"{name}-{number}", other)
            build(tmp_path / f"{name}.json", store(f"{folder}/{name}-{number}"), other, num_threads=2)
            assert files_of(tmp_path / f"{name}-{number}") == files_of(tmp_path / name)
            assert s3.files(f"{folder}/{name}-{number}") == files_of(tmp_path / name)
            check_rebuild(tmp_path / name, other)
    assert not list(tmp_path.glob(".mxconv*"))
    s3.put(f"{folder}/source/{MODEL}", bytes(len(s3.files(f"{folder}/source")[MODEL])))
    with pytest.raises(MxconvError):
        build(tmp_path / "by-folder.json", store(f"{folder}/other"), url)
    assert s3.files(f"{folder}/other") == {}
