"""Checkpoints and packages that lie on a store: read by ranges, or fetched once and hashed."""

import json
import pickle
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
import safetensors
from checkpoints import write_raw_safetensors, write_tiny_llama
from commands import run_without_torch
from hub_server import HubServer
from packages import files_of, quantize
from s3_proxy import FAULTS, bad, between
from s3_server import BUCKET, S3Server, connected
from stacked_models import write_random_model

from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.package_folder import find_package, find_package_or_none
from mxconv.verify import verify

BLOCK = 3000


def upload(s3: S3Server, local: Path, folder: str) -> str:
    for name, content in files_of(local).items():
        s3.put(f"{folder}/{name}", content)
    return f"s3://{BUCKET}/{folder}"


def convert_from(url: str, package: Path, **options: Any) -> None:
    with open_checkpoint(url) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options))


def weights_of(package: Path) -> dict[str, bytes]:
    """Everything but the manifest, which names the source."""
    return {name: content for name, content in files_of(package).items() if name != "mxconv.json"}


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is read of weights; blocks are short."""
    found: list[tuple[str, int, int]] = []
    read = Store.read

    def noted(store: Store, name: str, begin: int, end: int) -> bytes:
        found.append((name, begin, end))
        return read(store, name, begin, end)

    monkeypatch.setattr("mxconv.checkpoint.ranged_file.BLOCK_BYTES", BLOCK)
    monkeypatch.setattr("mxconv.checkpoint.source.BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(Store, "read", noted)
    return found


def test_tensors_are_those_of_the_safetensors_library(
    s3: S3Server, folder: str, tmp_path: Path, ranges: list[tuple[str, int, int]]
) -> None:
    local = write_tiny_llama(tmp_path / "m", num_shards=2)
    oracle = {
        name: (tensor["dtype"], tensor["shape"], bytes(tensor["data"]))
        for path in local.glob("*.safetensors")
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }
    with open_checkpoint(upload(s3, local, folder)) as checkpoint:
        assert checkpoint.is_on_store and checkpoint.config == open_checkpoint(local).config
        tensors = checkpoint.tensors
        found = {name: (t.dtype, list(t.shape), t.array().tobytes()) for name, t in tensors.items()}
        assert found == oracle
        for name, (_, shape, content) in oracle.items():
            row_bytes = len(content) // shape[0]
            for start in range(0, shape[0], 7):
                stop = min(start + 7, shape[0])
                assert tensors[name].rows(start, stop).tobytes() == content[start * row_bytes : stop * row_bytes]
            assert pickle.loads(pickle.dumps(tensors[name])).array().tobytes() == content
            with pytest.raises(ValueError, match="has no rows"):
                tensors[name].rows(0, shape[0] + 1)
        assert checkpoint.root.is_dir()
    assert not checkpoint.root.exists()
    longest = max(len(content) for _, _, content in oracle.values())
    assert (
        max(end - begin for _, begin, end in ranges)
        == longest
        < (local / "model-00001-of-00002.safetensors").stat().st_size
    )


def test_nothing_is_read_of_a_tensor_without_elements(
    s3: S3Server, folder: str, tmp_path: Path, ranges: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies where a block begins, too."""
    header = {
        "a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [8, 8]},
    }
    path = write_raw_safetensors(tmp_path / "model.safetensors", header, bytes(8))
    monkeypatch.setattr("mxconv.checkpoint.ranged_file.BLOCK_BYTES", path.stat().st_size)
    with open_checkpoint(upload(s3, tmp_path, folder)) as checkpoint:
        ranges.clear()
        empty = checkpoint.tensors["b"]
        assert empty.array().shape == empty.rows(0, 0).shape == (0, 3)
        assert all(begin == end for _, begin, end in ranges)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_source_gives_the_package_that_its_folder_gives(
    s3: S3Server, folder: str, tmp_path: Path, ranges: list[tuple[str, int, int]], codec: str
) -> None:
    local = write_tiny_llama(tmp_path / "m", num_shards=2)
    url = upload(s3, local, folder)
    options = {"codec": codec, "target": None if codec == "bsfp" else "reference", "num_threads": 2}
    quantize(local, tmp_path / "a", **options)
    convert_from(url, tmp_path / "b", **options)
    with open_checkpoint(local) as checkpoint:
        longest = max(tensor.num_bytes for tensor in checkpoint.tensors.values())
    assert max(end - begin for _, begin, end in ranges) <= max(BLOCK, longest)
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")
    with open_checkpoint(url) as checkpoint:
        found = verify(tmp_path / "b", checkpoint)
    assert found.ok and found.manifest.source.id == url


def test_mxfp4_brings_its_16_bit_weights_along(s3: S3Server, folder: str, tmp_path: Path) -> None:
    """There is nothing to link; the tensors are stored anew."""
    local = write_tiny_llama(tmp_path / "m")
    convert_from(upload(s3, local, folder), tmp_path / "p", codec="mxfp4", target="include")
    stored = dict(safetensors.deserialize((tmp_path / "p" / "model.safetensors").read_bytes()))
    oracle = dict(safetensors.deserialize((local / "model.safetensors").read_bytes()))
    assert stored == oracle
    assert verify(tmp_path / "p").ok


def test_an_expert_of_a_stack_is_read_once_a_pass(
    s3: S3Server, folder: str, tmp_path: Path, ranges: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_random_model(tmp_path / "m", "llama4_text")
    quantize(local, tmp_path / "a", codec="bsfp")
    url = upload(s3, local, folder)
    with open_checkpoint(url) as checkpoint:
        stack = next(t for t in checkpoint.tensors.values() if len(t.shape) == 3)
        expert_bytes = stack.num_bytes // stack.shape[0]
        monkeypatch.setattr("mxconv.checkpoint.ranged_file.BLOCK_BYTES", expert_bytes)  # nothing is kept of one
        ranges.clear()
        convert(checkpoint, tmp_path / "b", QuantizeOptions(codec="bsfp", num_threads=1))
        begin = stack._file.entries[stack.name].begin
    of_the_first = [r for r in ranges if r[1:] == (begin, begin + expert_bytes)]
    assert len(of_the_first) == 3  # its histogram, its codes, its own hash
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")


def test_a_bad_line_costs_time_only(
    s3: S3Server, folder: str, tmp_path: Path, ranges: list[tuple[str, int, int]]
) -> None:
    local = write_tiny_llama(tmp_path / "m")
    quantize(local, tmp_path / "a", codec="bsfp")
    url = upload(s3, local, folder)
    with between(s3.endpoint, bad(5, 0.08)) as line, connected(line.url):
        convert_from(url, tmp_path / "b", codec="bsfp", num_threads=2)
    assert all(line.happened[fault] >= 3 for fault in FAULTS)
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")


def test_a_source_that_changes_meanwhile_is_noticed(
    s3: S3Server, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_tiny_llama(tmp_path / "m")
    url = upload(s3, local, folder)
    with open_checkpoint(url) as checkpoint:
        sent = pickle.dumps(checkpoint.tensors["lm_head.weight"])
        content = (local / "model.safetensors").read_bytes()
        s3.put(f"{folder}/model.safetensors", content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError, match=rf"{url}/model\.safetensors: .* a checkpoint must stay as it is"):
            convert(checkpoint, tmp_path / "p", QuantizeOptions(codec="bsfp"))
        assert not (tmp_path / "p").exists()
        s3.delete(f"{folder}/model.safetensors")
    monkeypatch.setattr("mxconv.checkpoint.tensor._open", WeakValueDictionary())  # as in another process
    with pytest.raises(CheckpointError, match=r"model\.safetensors: gone now"):
        pickle.loads(sent)


def _no_shard(local: Path) -> None:
    next(iter(local.glob("model-*"))).unlink()


def _only_bin(local: Path) -> None:
    (local / "model.safetensors").rename(local / "pytorch_model.bin")


def _no_json(local: Path) -> None:
    (local / "config.json").write_text("{")


def _nothing(local: Path) -> None:
    for path in local.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "num_shards", "said"),
    [
        (_no_shard, 2, r"/model.safetensors.index.json: names shard 'model-0000\d-of-00002.safetensors', which is not"),
        (_only_bin, 1, r": holds .bin files alone; safetensors are required on an object store."),
        (_no_json, 1, r"/config.json: no valid JSON in UTF-8"),
        (_nothing, 1, r": no such folder, or an empty one; one with a model is required."),
    ],
)
def test_what_is_wrong_is_told_by_its_url(
    s3: S3Server, folder: str, tmp_path: Path, spoil: Any, num_shards: int, said: str
) -> None:
    local = write_tiny_llama(tmp_path / "m", num_shards=num_shards)
    spoil(local)
    with pytest.raises(CheckpointError, match=rf"^s3://{BUCKET}/{folder}{said}"):
        open_checkpoint(upload(s3, local, folder))


def test_a_repository_on_the_hub_is_read_by_ranges(tmp_path: Path) -> None:
    """Not whole into the cache, as by its id."""
    local = write_tiny_llama(tmp_path / "m", num_shards=2)
    quantize(local, tmp_path / "a", codec="bsfp")
    with HubServer({"me/base": {"main": local}}) as hub, pytest.MonkeyPatch.context() as environment:
        for name, value in hub.environment(tmp_path / "cache").items():
            environment.setenv(name, value)
        package = str(tmp_path / "b")
        found = run_without_torch("quantize", "hf://me/base", "-o", package, "--codec", "bsfp", "--threads", "1")
        assert found.returncode == 0, found.stderr
        refused = run_without_torch("quantize", str(local), "-o", "hf://me/package", "--codec", "bsfp")
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")
    assert {name for name, _ in hub.ranges} == {path.name for path in local.glob("*.safetensors")}
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert refused.returncode == 1 and "mxconv push" in refused.stderr


def test_what_one_may_not_read_is_told_at_once(tmp_path: Path) -> None:
    local = write_tiny_llama(tmp_path / "m")
    with HubServer({"me/base": {"main": local}}) as hub, pytest.MonkeyPatch.context() as environment:
        for name, value in hub.environment(tmp_path / "cache").items():
            environment.setenv(name, value)
        hub.forbidden.add("me/base")
        found = run_without_torch("inspect", "hf://me/base")
    assert found.returncode == 1
    assert "hf://me/base/mxconv.json: access is refused (" in " ".join(found.stderr.split())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    quantize(write_tiny_llama(tmp_path / "m"), tmp_path / "p", codec="bsfp")
    return tmp_path / "p"


def test_a_package_is_fetched_once(s3: S3Server, folder: str, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = upload(s3, package, folder)
    told: list[tuple[int, int]] = []
    found = find_package(url, progress=lambda stage, done, total: told.append((done, total)))
    assert files_of(found) == files_of(package)
    assert told[-1][0] == told[-1][1] == sum(len(c) for n, c in files_of(package).items() if n != "mxconv.json")
    monkeypatch.delattr("mxconv.checkpoint.object_store.Store.read")
    assert find_package(url) == found


def test_another_manifest_is_another_folder(s3: S3Server, folder: str, package: Path, tmp_path: Path) -> None:
    first = find_package(upload(s3, package, folder))
    quantize(tmp_path / "m", tmp_path / "q", codec="bsfp", lm_head="keep")
    second = find_package(upload(s3, tmp_path / "q", folder))
    assert first != second and files_of(second) == files_of(tmp_path / "q") != files_of(first)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda s3, key, content: s3.delete(key), "is not there; mxconv.json lists it with"),
        (lambda s3, key, content: s3.put(key, content[:-1]), r"has [\d,]+ bytes; mxconv.json lists it with"),
        (lambda s3, key, content: s3.put(key, content[:-1] + b"x"), "its SHA-256 is not the one in mxconv.json"),
    ],
    ids=["gone", "cut", "changed"],
)
def test_a_damaged_file_is_told_and_not_kept(
    s3: S3Server, folder: str, package: Path, spoil: object, said: str
) -> None:
    url = upload(s3, package, folder)
    content = (package / "bsfp.safetensors").read_bytes()
    spoil(s3, f"{folder}/bsfp.safetensors", content)  # type: ignore[operator]
    with pytest.raises(PackageError, match=rf"{url}/bsfp\.safetensors: {said}"):
        find_package(url)
    s3.put(f"{folder}/bsfp.safetensors", content)  # and what is whole then is taken
    assert files_of(find_package(url)) == files_of(package)


def test_a_manifest_that_is_too_long_is_not_read(
    s3: S3Server, folder: str, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxconv.package.package_folder.MAX_JSON_BYTES", 100)
    with pytest.raises(PackageError, match=r"/mxconv\.json: [\d,]+ bytes; at most 100 are read"):
        find_package(upload(s3, package, folder))


def test_no_package_is_told(s3: S3Server, folder: str, package: Path) -> None:
    url = f"s3://{BUCKET}/{folder}"
    assert find_package_or_none(url) is None
    with pytest.raises(PackageError, match=rf"{url}: holds no mxconv\.json; .* mxconv quantize MODEL -o {url}"):
        find_package(url)
    with pytest.raises(CheckpointError, match="revision 'v1' was given for an object store"):
        find_package(url, "v1")


def test_commands_take_urls(s3: S3Server, folder: str, package: Path, tmp_path: Path) -> None:
    url = upload(s3, package, folder)
    environment = {"HF_HOME": str(tmp_path / "home")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        found = run_without_torch("verify", url, "--json")
        assert found.returncode == 0, found.stderr
        result = json.loads(found.stdout.splitlines()[-1])
        assert result["ok"] and result["lossless"]
        of_url, of_path = (
            json.loads(run_without_torch("inspect", p, "--json").stdout.splitlines()[-1]) for p in (url, str(package))
        )
        assert of_url["total"] == of_path["total"]
        refused = run_without_torch("verify", url, "--write")
        assert refused.returncode == 1
        assert f"{url}: a package on an object store; the certificate is written into a local folder." in " ".join(
            refused.stderr.split()
        )
