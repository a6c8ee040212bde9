"""The half of the loopback hub that takes uploads: create, branch, preupload, LFS batch, PUT, commit.

Large files are kept by their SHA-256 and never held in memory; a commit is a new folder of hard links to them.
"""

import base64
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

if TYPE_CHECKING:
    from hub_server import HubServer

CHUNK_BYTES = 1 << 16


class Uploads:
    """Where uploaded bytes go: objects by SHA-256, and one folder a commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_bytes_received: dict[str, int] = {}  # of each object, retries and broken attempts counted
        self.summaries: list[str] = []  # of every commit so far
        self._lock = threading.Lock()

    def object(self, oid: str) -> Path:
        return self.folder / "objects" / oid

    def receive(self, oid: str, pieces: Iterator[bytes], place: Path) -> str:
        """Write what arrives; its SHA-256."""
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with place.open("wb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
                with self._lock:
                    self.num_bytes_received[oid] = self.num_bytes_received.get(oid, 0) + len(piece)
        return digest.hexdigest()

    def commit(self, before: Path | None, lines: list[dict[str, Any]]) -> Path:
        """A folder with the files of the one before, changed as the lines say."""
        after = self.folder / "commits" / str(len(self.summaries))
        after.mkdir(parents=True)
        if before is not None:
            shutil.copytree(before, after, copy_function=os.link, dirs_exist_ok=True)
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.summaries.append(value["summary"])
                continue
            path = after / value["path"]
            assert path.resolve().is_relative_to(after.resolve())
            path.unlink(missing_ok=True)  # deletedFile, or a link to the old content
            path.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "file":
                path.write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                os.link(self.object(value["oid"]), path)
        return after


def body_pieces(headers: Any, stream: BinaryIO) -> Iterator[bytes]:
    """The content of a request, chunked or of a given length, as it arrives."""
    if headers.get("Transfer-Encoding") != "chunked":
        left = int(headers.get("Content-Length") or 0)
        while left and (piece := stream.read(min(left, CHUNK_BYTES))):
            left -= len(piece)
            yield piece
        return
    while num_bytes := int(stream.readline() or b"0", 16):
        yield stream.read(num_bytes)
        stream.readline()
    stream.readline()


def answer(hub: "HubServer", method: str, raw_path: str, pieces: Iterator[bytes]) -> tuple[int, object, dict[str, str]]:
    """Status, JSON and headers for a request that writes."""
    assert hub.uploads is not None
    uploads = hub.uploads
    parts = [unquote(part) for part in raw_path.strip("/").split("/")]
    if method == "PUT":  # /lfs/OID
        new = uploads.object(parts[1]).with_name(f"{parts[1]}.new")
        if uploads.receive(parts[1], pieces, new) != parts[1]:
            return 400, {"error": "the content is not what its SHA-256 says"}, {}
        new.replace(uploads.object(parts[1]))
        return 200, {}, {}
    content = b"".join(pieces)
    if parts[0] == "lfs":  # /lfs/OID/verify
        return (200 if uploads.object(parts[1]).exists() else 404), {}, {}
    if parts[-3:] == ["lfs", "objects", "batch"]:
        return 200, _batch(hub, json.loads(content)), {}
    if parts == ["api", "validate-yaml"]:
        return 200, {"errors": [], "warnings": []}, {}
    if parts == ["api", "repos", "create"]:
        return _create(hub, json.loads(content))
    repo_id, action, revision = "/".join(parts[2:4]), parts[4], parts[5]
    revisions = hub.repositories[repo_id]
    if action == "branch":
        revisions[revision] = revisions["main"]
        return 200, {}, {}
    if action == "preupload":
        return 200, {"files": [_mode(file) for file in json.loads(content)["files"]]}, {}
    assert action == "commit"
    lines = [json.loads(line) for line in content.splitlines()]
    revisions[revision] = uploads.commit(revisions.get(revision), lines)
    commit = hub.commit_of(revisions[revision])
    return 200, {"commitUrl": f"{hub.url}/{repo_id}/commit/{commit}", "commitOid": commit}, {}


def _create(hub: "HubServer", wanted: dict[str, Any]) -> tuple[int, object, dict[str, str]]:
    assert hub.uploads is not None
    repo_id = f"{wanted['organization']}/{wanted['name']}"
    if wanted["organization"] in hub.foreign:
        return 403, {"error": "You don't have the rights to create a model under this namespace"}, {}
    if repo_id in hub.repositories:
        return 409, {"error": "You already created this model repo", "url": f"{hub.url}/{repo_id}"}, {}
    first = hub.uploads.commit(None, [{"key": "header", "value": {"summary": "initial commit"}}])
    (first / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    hub.repositories[repo_id] = {"main": first}
    if wanted.get("private") or wanted.get("visibility") == "private":
        hub.private.add(repo_id)
    return 200, {"url": f"{hub.url}/{repo_id}"}, {}


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    is_large = file["path"].endswith(".safetensors") or file["size"] > 10_000_000
    return {"path": file["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}


def _batch(hub: "HubServer", wanted: dict[str, Any]) -> dict[str, Any]:
    assert hub.uploads is not None
    uploads, objects = hub.uploads, []
    for described in wanted["objects"]:
        oid, num_bytes = described["oid"], described["size"]
        if uploads.object(oid).exists():
            objects.append({"oid": oid, "size": num_bytes})
            continue
        actions = {"upload": {"href": f"{hub.url}/lfs/{oid}"}, "verify": {"href": f"{hub.url}/lfs/{oid}/verify"}}
        objects.append({"oid": oid, "size": num_bytes, "actions": actions})
    return {"transfer": "basic", "objects": objects}
