"""What `mxconv pull` brings from a hub, and what it refuses."""

import time
from pathlib import Path

import pytest
from hub_client import Client
from hub_server import HubServer, commit_of
from packages import MANIFEST, add_files, files_of, flip, forge, quantize

from mxconv.checkpoint.hub import check_names
from mxconv.errors import CheckpointError

LARGE = "bsfp.safetensors"


@pytest.fixture
def hub(hub: HubServer, bsfp: Path, tmp_path: Path) -> HubServer:
    """The hub with a package, me/tiny, beside which there are a card and notes."""
    remote = tmp_path / "remote"
    copy_of(bsfp, remote)
    (remote / "README.md").write_text("a card")
    hub.repositories["me/tiny"] = {"main": remote}
    return hub


def copy_of(package: Path, folder: Path) -> None:
    for name, content in files_of(package).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_a_package_arrives_byte_for_byte_without_what_is_not_in_its_manifest(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    pulled = client("pull", "me/tiny", "-o", "deep/er")
    assert files_of(tmp_path / "deep" / "er") == files_of(bsfp)
    assert pulled["package"] == "deep/er" and pulled["repo_id"] == "me/tiny"
    assert pulled["commit"] == commit_of(hub.repositories["me/tiny"]["main"])
    assert pulled["files"] == sorted(name for name in files_of(bsfp) if name != MANIFEST)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["er"]


def test_a_package_is_replaced_with_force_alone(
    hub: HubServer, client: Client, bsfp: Path, source: Path, tmp_path: Path
) -> None:
    quantize(source, tmp_path / "tiny", codec="mxfp4")
    error = f"{tmp_path / 'tiny'}: exists; nothing is overwritten. Choose another output, or use --force."
    assert client.error("pull", "me/tiny") == error and hub.requests == []
    client("pull", "me/tiny", "--force")
    assert files_of(tmp_path / "tiny") == files_of(bsfp)


BIG, NUM_BIG_BYTES = "further-0.safetensors", 24_000_000  # the client writes ten million bytes at a time


@pytest.fixture
def big(hub: HubServer, bsfp: Path, tmp_path: Path) -> Path:
    """A package with a file that takes several writes; the hub has it as me/tiny."""
    package = add_files(bsfp, tmp_path / "big", [NUM_BIG_BYTES])
    hub.repositories["me/tiny"] = {"main": package}
    return package


def test_a_connection_cut_in_the_middle_of_a_file_goes_on_there(
    hub: HubServer, client: Client, big: Path, tmp_path: Path
) -> None:
    hub.cut.add(BIG)
    hub.failures += [("GET /api/models/me/tiny", 503), (f"GET /me/tiny/resolve/{commit_of(big)}/{LARGE}", 500)]
    client("pull", "me/tiny")
    assert files_of(tmp_path / "tiny") == files_of(big)
    assert hub.ranges == [(BIG, 10_485_760)] and not hub.failures


def test_a_killed_pull_keeps_the_files_that_it_had_finished(
    hub: HubServer, client: Client, big: Path, tmp_path: Path
) -> None:
    hub.stop_after = (BIG, 12_000_000)
    process = client.start("pull", "me/tiny")
    assert hub.stopped.wait(60)
    while not all((tmp_path / "tiny.pulling" / name).exists() for name in {*files_of(big)} - {BIG}):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    hub.go_on.set()
    assert not (tmp_path / "tiny").exists()
    hub.requests.clear()
    client("pull", "me/tiny")
    assert files_of(tmp_path / "tiny") == files_of(big) and not (tmp_path / "tiny.pulling").exists()
    assert hub.downloads() == [BIG]


# what is refused


def test_a_file_that_is_not_the_one_of_the_manifest_is_refused(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    """As where somebody pushes another file between the two reads."""
    remote = hub.repositories["me/tiny"]["main"]
    flip(remote / LARGE, 150_000)
    refused = (
        f"me/tiny: the SHA-256 of '{LARGE}' is not the one in mxconv.json; the files that were pushed are required. "
        "Run again; if it stays so, tell the package's owner."
    )
    assert client.error("pull", "me/tiny") == refused
    assert client.error("verify", "me/tiny") == refused
    assert not (tmp_path / "tiny").exists()
    flip(remote / LARGE, 150_000)
    client("pull", "me/tiny")
    assert files_of(tmp_path / "tiny") == files_of(bsfp)
    assert client("verify", "me/tiny")["ok"]


def test_a_file_name_that_leads_out_of_the_folder_is_refused(hub: HubServer, client: Client, tmp_path: Path) -> None:
    name = "../escaped"

    def rename(members: dict[str, list[dict[str, str]]]) -> None:
        members["files"][0]["path"] = name

    forge(hub.repositories["me/tiny"]["main"], rename)
    error = client.error("pull", "me/tiny")
    assert f"files.0.path: Value error, path {name!r}; a relative path of plain names joined by '/'" in error
    hub.listed.append(name)
    assert client.error("pull", "me/tiny") == (
        f"me/tiny: lists a file named {name!r}; a path inside the repository is required. "
        "Do not use this repository unless you know who made it."
    )
    assert not list(tmp_path.rglob("escaped")) and hub.downloads() == [MANIFEST]
    for name in ("/escaped", "a/../../escaped", "..\\escaped", "c:escaped"):
        with pytest.raises(CheckpointError, match=r"lists a file named .*; a path inside the repository is required"):
            check_names("me/tiny", ["config.json", name])


def test_what_is_no_package_or_lacks_a_file_is_refused(hub: HubServer, client: Client) -> None:
    assert client.error("pull", "org/base") == (
        "org/base: holds no mxconv.json; a repository that `mxconv push` wrote is required. "
        "Convert it instead: mxconv quantize org/base -o FOLDER"
    )
    (hub.repositories["me/tiny"]["main"] / LARGE).unlink()
    assert client.error("pull", "me/tiny") == (
        f"me/tiny: mxconv.json lists '{LARGE}', which the repository does not have; every file is required. "
        "Try another --revision, or tell the package's owner."
    )
    assert client.error("pull", "tiny") == "tiny: no Hub id; owner/name is required. Check the spelling."
