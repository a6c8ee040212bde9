"""Packages that are opened by URL: fetched once, hashed, and what the commands say of them."""

import json
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from commands import run_without_torch
from packages import files_of, quantize
from s3_server import BUCKET, S3Server

from mxconv.errors import CheckpointError, PackageError
from mxconv.package.package_folder import find_package, find_package_or_none


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    quantize(write_tiny_llama(tmp_path / "m"), tmp_path / "p", codec="bsfp")
    return tmp_path / "p"


def upload(s3: S3Server, package: Path, folder: str) -> str:
    for name, content in files_of(package).items():
        s3.put(f"{folder}/{name}", content)
    return f"s3://{BUCKET}/{folder}"


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
