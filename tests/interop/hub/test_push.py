"""What `mxconv push` leaves on a hub, and what it says when it cannot."""

import shutil
import signal
import threading
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from hub_client import Client
from hub_server import HubServer, commit_of
from packages import MANIFEST, add_files, files_of, flip, forge, quantize

from mxconv.errors import PackageError
from mxconv.interop.hub.push import prepare_publication, prepare_recipe

LARGE = "bsfp.safetensors"


def tree(hub: HubServer, repo_id: str, branch: str = "main") -> dict[str, bytes]:
    """The files of a repository that are not the hub's own."""
    return {name: raw for name, raw in files_of(hub.repositories[repo_id][branch]).items() if name != ".gitattributes"}


def test_a_package_arrives_byte_for_byte_in_one_commit(hub: HubServer, client: Client, bsfp: Path) -> None:
    pushed = client("push", bsfp, "me/tiny", "--message", "First words")
    found = tree(hub, "me/tiny")
    card = found.pop("README.md")
    assert found == files_of(bsfp)
    assert pushed["repo_id"] == "me/tiny" and pushed["commit"] == commit_of(hub.repositories["me/tiny"]["main"])
    assert pushed["url"] == f"{hub.url}/me/tiny/commit/{pushed['commit']}"
    assert pushed["files"] == sorted([*files_of(bsfp), "README.md"])
    assert pushed["num_bytes_uploaded"] == sum(map(len, found.values())) + len(card)
    assert hub.uploads is not None and hub.uploads.summaries == ["initial commit", "First words"]
    assert "me/tiny" not in hub.private and pushed["wrote_card"]


def test_a_dry_run_shows_the_card_and_the_files_and_contacts_no_one(hub: HubServer, client: Client, bsfp: Path) -> None:
    planned = client("push", bsfp, "me/tiny", "--dry-run")
    client("quantize", "org/base", "-o", "whole")
    hub.requests.clear()
    out, _ = client.output("push", "whole", "me/other", "--drafts-only", "--dry-run")
    assert client.error("push", bsfp, "tiny", "--dry-run").startswith("tiny: no Hub id; owner/name is required.")
    assert hub.requests == [] and not {"me/tiny", "me/other"} & {*hub.repositories}
    assert "# me/other\n" in out and "license:" not in out and "model.safetensors" not in out
    assert "fewer where the Hub has some already. Nothing was sent.\nA push adds the license and the languages" in out
    client("push", bsfp, "me/tiny")
    found = tree(hub, "me/tiny")
    assert planned["card"].encode() == found["README.md"] and "license: apache-2.0" in planned["card"]
    assert planned["files"] == {name: len(raw) for name, raw in sorted(found.items())}


def test_a_second_push_sends_nothing_and_a_new_version_replaces_the_old(
    hub: HubServer, client: Client, bsfp: Path, source: Path, tmp_path: Path
) -> None:
    first = client("push", bsfp, "me/tiny")
    hub.requests.clear()
    again = client("push", bsfp, "me/tiny")
    assert again["commit"] == first["commit"] and again["num_bytes_uploaded"] == 0
    assert not [line for line in hub.requests if line.startswith("PUT") or "/commit/" in line]

    quantize(source, tmp_path / "next", codec="mxfp4")
    client("push", tmp_path / "next", "me/tiny")
    found = tree(hub, "me/tiny")
    assert LARGE not in found  # the old package's; everything of the new one is there
    assert {name: raw for name, raw in found.items() if name != "README.md"} == files_of(tmp_path / "next")
    assert b"MXFP4" in found["README.md"]


def test_files_of_others_stay_and_an_edited_card_is_kept(hub: HubServer, client: Client, bsfp: Path) -> None:
    client("push", bsfp, "me/tiny")
    folder = hub.repositories["me/tiny"]["main"]
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("My own words.")
    pushed = client("push", bsfp, "me/tiny", "--message", "again")
    assert not pushed["wrote_card"] and tree(hub, "me/tiny")["README.md"] == b"My own words."
    assert client("push", bsfp, "me/tiny", "--force")["wrote_card"]
    assert tree(hub, "me/tiny")["README.md"].startswith(b"---\n") and tree(hub, "me/tiny")["notes.txt"] == b"mine"


def test_a_repository_that_is_no_package_is_not_overwritten(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    hub.repositories["me/model"] = {"main": other}
    assert client.error("push", bsfp, "me/model") == (
        "me/model: is no package and has another 'config.json'; nothing is overwritten. "
        "Choose another repository or --revision, or use --force."
    )
    client("push", bsfp, "me/model", "--force")
    assert tree(hub, "me/model")["config.json"] == files_of(bsfp)["config.json"]


def test_a_branch_is_created_and_a_private_repository_stays_private(hub: HubServer, client: Client, bsfp: Path) -> None:
    client("push", bsfp, "me/hidden", "--private", "--revision", "draft/1")
    assert "me/hidden" in hub.private
    assert MANIFEST in tree(hub, "me/hidden", "draft/1") and MANIFEST not in tree(hub, "me/hidden")
    hub.private.clear()
    assert client.error("push", bsfp, "me/hidden", "--private") == (
        "me/hidden: is public; --private creates a private repository, it does not hide one. "
        "Make it private in its settings, choose another name, or leave --private out."
    )


# drafts only


def test_drafts_only_leaves_the_target_where_it_is(
    hub: HubServer, client: Client, source: Path, tmp_path: Path
) -> None:
    client("quantize", "org/base", "-o", "whole", "--target", "include")
    client("quantize", "org/base", "-o", "drafts", "--target", "reference")
    pushed = client("push", "whole", "me/drafts", "--drafts-only")
    found = tree(hub, "me/drafts")
    del found["README.md"]
    assert found == files_of(tmp_path / "drafts")  # what a conversion that references its target writes
    assert hub.uploads is not None
    sent = {path.stat().st_size for path in (hub.uploads.folder / "objects").iterdir()}
    assert sent == {len(found["mxfp4.safetensors"])}
    assert pushed["files"] == sorted([*files_of(tmp_path / "drafts"), "README.md"])
    assert client("push", "drafts", "me/drafts", "--drafts-only")["num_bytes_uploaded"] == 0


def test_a_target_that_others_cannot_find_is_refused(bsfp: Path, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "local", codec="mxfp4")
    quantize(source, tmp_path / "package", codec="mxfp4", target="reference")
    quantize(write_tiny_llama(tmp_path / "wide", dtype="F32"), tmp_path / "rounded", codec="mxfp4", dtype="bf16")
    forge(tmp_path / "rounded", lambda members: members["source"].update({"id": "org/base", "commit": "0" * 40}))
    for package, drafts_only, words in (
        (bsfp, True, "bsfp: --drafts-only of a BSFP package; its draft and its target share"),
        (tmp_path / "local", True, "local: --drafts-only, but it was converted from the folder .*/base; a"),
        (tmp_path / "rounded", True, "rounded: --drafts-only, but its 16-bit target was made by the conver"),
        (tmp_path / "package", True, "package: references its target in the folder /.*/base, which nobody"),
        (tmp_path / "package", False, "package: references its target in the folder /.*/base, which nobody"),
    ):
        with pytest.raises(PackageError, match=words):
            prepare_publication(package, drafts_only=drafts_only)
    with pytest.raises(PackageError, match=r"bsfp: --recipe, but it was converted from .* Convert again"):
        prepare_recipe(bsfp, tmp_path)


# faults


def test_who_may_not_write_and_a_hub_that_keeps_failing_are_told(hub: HubServer, client: Client, bsfp: Path) -> None:
    assert client.error("push", bsfp, "me/tiny", HF_TOKEN="") == (
        "me/tiny: the Hub asks who is pushing (HTTP 401); a valid token that may write is required. "
        "Run `hf auth login`, or set HF_TOKEN."
    )
    assert client.error("push", bsfp, "me/tiny", HF_HUB_OFFLINE="1") == (
        "me/tiny: offline mode is on; a connection is required. Unset HF_HUB_OFFLINE to push."
    )
    hub.foreign.add("them")
    assert client.error("push", bsfp, "them/tiny") == (
        "them/tiny: the token may not write there (HTTP 403); write permission for 'them' is required. "
        "Check the spelling and the token's permissions, or push to a name of your own."
    )
    assert client.error("push", bsfp, "tiny").startswith("tiny: no Hub id; owner/name is required.")
    hub.status = 503
    assert client.error("push", bsfp, "me/tiny") == (
        "me/tiny: the Hub failed (HTTP 503); a Hub that takes the files is required. "
        "Check the network and run again: finished files are not sent again."
    )


def test_failures_of_the_hub_and_broken_connections_are_tried_again(hub: HubServer, client: Client, bsfp: Path) -> None:
    hub.failures += [("POST /api/repos/create", 503), ("GET /api/models/me/tiny/tree", 502), ("PUT /lfs", 500)]
    hub.failures += [("POST /api/models/me/tiny/commit", 504)]
    hub.cut_uploads = 1
    client("push", bsfp, "me/tiny")
    assert not hub.failures and hub.cut_uploads == 0
    assert tree(hub, "me/tiny")[LARGE] == files_of(bsfp)[LARGE]


def test_a_damaged_package_is_not_pushed(hub: HubServer, client: Client, bsfp: Path, tmp_path: Path) -> None:
    shutil.copytree(bsfp, tmp_path / "package")
    flip(tmp_path / "package" / LARGE, -100 % (tmp_path / "package" / LARGE).stat().st_size)
    assert client.error("push", "package", "me/tiny") == (
        f"package/{LARGE}: its SHA-256 is not the one in mxconv.json; only whole packages are pushed. Convert again."
    )
    assert hub.requests == []


def test_a_file_that_changes_while_it_is_sent_is_refused(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    shutil.copytree(bsfp, tmp_path / "package")

    def change(request: str) -> None:
        if request.endswith("/batch"):
            flip(tmp_path / "package" / LARGE, 150_000)

    hub.on_request = change
    assert client.error("push", "package", "me/tiny") == (
        "me/tiny: the Hub refuses the upload (HTTP 400: the content is not what its SHA-256 says); what it asks for is "
        "required. Correct it and run again: finished files are not sent again."
    )
    assert tree(hub, "me/tiny") == {}


# an interrupted push


def test_an_interrupted_push_does_not_send_finished_files_again(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    package = add_files(bsfp, tmp_path / "package", [4_000_000] * 4)
    assert hub.uploads is not None
    puts, reached = [], threading.Event()

    def hold(request: str) -> None:
        if request.startswith("PUT ") and not reached.is_set():
            puts.append(request)
            if len(puts) == 3:
                reached.set()
                process.kill()
                process.wait()

    hub.on_request = hold
    process = client.start("push", package, "me/large")
    process.communicate()
    assert reached.is_set() and process.returncode == -signal.SIGKILL
    assert MANIFEST not in tree(hub, "me/large")  # nobody sees a part of it
    finished = {path.name for path in (hub.uploads.folder / "objects").iterdir() if "." not in path.name}
    assert len(finished) == 2
    client("push", package, "me/large")
    found = tree(hub, "me/large")
    del found["README.md"]
    assert found == files_of(package)
    sizes = {oid: (hub.uploads.folder / "objects" / oid).stat().st_size for oid in finished}
    assert {oid: hub.uploads.num_bytes_received[oid] for oid in finished} == sizes
