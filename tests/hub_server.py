"""A model hub on loopback: the part of the HTTP interface that huggingface_hub uses to list, download and upload.

    with HubServer({"org/tiny": {"main": folder}}) as hub:
        subprocess.run([...], env=hub.environment(cache_folder))

Every folder is a commit, named by a hash of its content. There is no xet storage: clients send whole files. They must
be processes of their own: huggingface_hub reads its environment once, when it is imported.
"""

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_uploads import CHUNK_BYTES, Uploads, answer, body_pieces
from huggingface_hub.repocard import metadata_load

TOKEN = "hf_token_of_the_tests"


class HubServer:
    """Serves model repositories until its `with` block ends."""

    def __init__(self, repositories: Mapping[str, Mapping[str, Path]], storage: Path | None = None) -> None:
        # id -> branch or tag -> folder; may be changed while it serves
        self.repositories = {name: dict(revisions) for name, revisions in repositories.items()}
        self.gated: set[str] = set()  # ids whose files (not their listing) need TOKEN and accepted terms
        self.private: set[str] = set()  # ids that do not exist for anyone without TOKEN
        self.forbidden: set[str] = set()  # ids that answer 403
        self.foreign: set[str] = set()  # owners for whom nobody here may create repositories
        self.status: int | None = None  # of every answer, when set
        self.failures: list[tuple[str, int]] = []  # start of "METHOD /path", and how the next such request fails
        self.cut: set[str] = set()  # names of files whose next download breaks off in the middle
        # the next download of this file waits after so many bytes for `go_on`, and sets `stopped`
        self.stop_after: tuple[str, int] | None = None
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self.cut_uploads = 0  # how many further uploads of large files break off in the middle
        self.contents: dict[str, Path] = {}  # file names, and what is sent of them in place of the listed content
        self.listed: list[str] = []  # names that listings have besides those of the files
        self.ranges: list[tuple[str, int]] = []  # name and first byte of every download that wanted a part
        self.uploads = None if storage is None else Uploads(storage)  # None refuses to be written to
        self.on_request: Callable[[str], object] = self._ignore  # called with "GET /path" before each answer
        self.requests: list[str] = []  # every request so far, "GET /path"
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @staticmethod
    def _ignore(request: str) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, cache: Path, **more: str) -> dict[str, str]:
        """Environment variables that make a client use this server and this cache, and nothing else."""
        kept = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("HF_", "HUGGING")) and not name.lower().endswith("_proxy")
        }
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "NO_PROXY": "127.0.0.1",
            **more,
        }

    @staticmethod
    def commit_of(folder: Path) -> str:
        return commit_of(folder)

    def fails(self, request: str) -> int | None:
        """The status that this request is to fail with."""
        for failure in self.failures:
            if request.startswith(failure[0]):
                self.failures.remove(failure)
                return failure[1]
        return None

    def stop(self, name: str, num_bytes: int) -> None:
        """Wait for `go_on` where a download is to stop."""
        if self.stop_after is not None and self.stop_after[0] == name and self.stop_after[1] <= num_bytes:
            self.stop_after = None
            self.stopped.set()
            self.go_on.wait()

    def downloads(self) -> list[str]:
        """The names of the files whose content was asked for, sorted, each once."""
        paths = {line.split(" ")[1] for line in self.requests if line.startswith("GET ") and "/resolve/" in line}
        return sorted(path.split("/resolve/")[1].split("/", 1)[1] for path in paths)

    def __enter__(self) -> "HubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the tests kill clients
            super().handle_error(request, client_address)


def commit_of(folder: Path) -> str:
    """The commit that the server gives a folder: 40 hex digits of its file names and contents."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(path.encode() + b"\0" + _sha256(folder / path).encode())
    return digest.hexdigest()[:40]


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_once(path, status.st_size, status.st_mtime_ns)


@cache
def _sha256_once(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _handler_of(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._take()

    def do_PUT(self) -> None:
        self._take()

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        raw = urlsplit(self.path).path  # a branch may hold slashes, quoted
        path = unquote(raw)
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.on_request(f"{self.command} {path}")
        if (status := self.hub.status or self.hub.fails(f"{self.command} {path}")) is not None:
            self._refuse(status, None)
            return
        is_api = path.startswith("/api/models/")
        parts = [unquote(part) for part in raw.removeprefix("/api/models").strip("/").split("/")]
        owned = 1 if parts[0] in self.hub.repositories else 2  # the oldest models have no owner
        repo_id, rest = "/".join(parts[:owned]), parts[owned:]
        revisions = self.hub.repositories.get(repo_id)
        token = self.headers.get("Authorization")
        is_known = token == f"Bearer {TOKEN}"
        if token is not None and not is_known:
            self._refuse(401, None, "Invalid credentials in Authorization header")
            return
        if revisions is None or (repo_id in self.hub.private and not is_known):
            # the real Hub does not tell strangers what exists
            self._refuse(404 if is_known else 401, "RepoNotFound")
            return
        if repo_id in self.hub.forbidden:
            self._refuse(403, None)
            return
        revision = rest[1] if len(rest) > 1 else "main"
        folder = next((folder for name, folder in revisions.items() if revision in (name, commit_of(folder))), None)
        if folder is None:
            self._refuse(404, "RevisionNotFound")
        elif is_api and rest[:1] == ["tree"]:
            self._send_json([{"type": "file", **_described(folder, name)} for name in _files(folder)])
        elif is_api:
            siblings = [{"rfilename": name} for name in [*_files(folder), *self.hub.listed]]
            card = metadata_load(folder / "README.md") if (folder / "README.md").is_file() else None
            is_private = repo_id in self.hub.private
            described = {"id": repo_id, "sha": commit_of(folder), "siblings": siblings, "private": is_private}
            self._send_json(described | ({"cardData": card} if card else {}))
        elif repo_id in self.hub.gated and not is_known:
            self._refuse(401, "GatedRepo")
        else:
            self._send_file(folder, "/".join(rest[2:]))

    def _take(self) -> None:
        """A request that writes."""
        raw = urlsplit(self.path).path
        self.hub.requests.append(f"{self.command} {unquote(raw)}")
        self.hub.on_request(f"{self.command} {unquote(raw)}")
        pieces = body_pieces(self.headers, self.rfile)
        if "/paths-info/" in raw:
            self._send_paths_info(raw, b"".join(pieces))
            return
        status = self.hub.status or self.hub.fails(f"{self.command} {unquote(raw)}")
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}" or raw.startswith("/lfs/")
        repo_id = "/".join(unquote(part) for part in raw.removeprefix("/api/models").strip("/").split("/")[:2])
        if status is None and not is_known:
            status = 401
        elif status is None and (self.hub.uploads is None or repo_id in self.hub.forbidden):
            status = 403
        if status is not None:
            for _ in pieces:
                pass
            self._refuse(status, None)
            return
        if self.command == "PUT" and self.hub.cut_uploads:
            self.hub.cut_uploads -= 1
            pieces = iter([next(pieces)])
            answer(self.hub, self.command, raw, pieces)
            self.close_connection = True
            return
        status, members, headers = answer(self.hub, self.command, raw, pieces)
        self._send(status, json.dumps(members).encode(), {"Content-Type": "application/json", **headers})

    def _send_paths_info(self, raw: str, form: bytes) -> None:
        """A request that asks for files by name, in a form."""
        owner, name, _, revision = raw.removeprefix("/api/models/").split("/")
        revisions = self.hub.repositories[f"{owner}/{name}"]
        folder = next(folder for key, folder in revisions.items() if unquote(revision) in (key, commit_of(folder)))
        wanted = parse_qs(form.decode())["paths"]
        self._send_json([{"type": "file", **_described(folder, n)} for n in _files(folder) if n in wanted])

    def _refuse(self, status: int, code: str | None, message: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        if message is not None:
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_file(self, folder: Path, name: str) -> None:
        if name not in _files(folder):
            self._refuse(404, "EntryNotFound")
            return
        path = folder / name
        num_bytes = path.stat().st_size
        headers = {"ETag": f'"{_sha256(path)}"', "X-Repo-Commit": commit_of(folder), "Accept-Ranges": "bytes"}
        begin, end = 0, num_bytes
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            first, last = wanted.removeprefix("bytes=").split("-")
            begin, end = int(first), int(last) + 1 if last else num_bytes
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{num_bytes}"
            if self.command == "GET":
                self.hub.ranges.append((name, begin))
        self.send_response(206 if wanted else 200)
        for key, text in headers.items():
            self.send_header(key, text)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            if name in self.hub.cut:
                self.hub.cut.remove(name)
                end = (begin + end) // 2
                self.close_connection = True
            with self.hub.contents.get(name, path).open("rb") as file:
                file.seek(begin)
                while begin < end and (piece := file.read(min(CHUNK_BYTES, end - begin))):
                    self.wfile.write(piece)
                    begin += len(piece)
                    self.hub.stop(name, begin)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _described(folder: Path, name: str) -> dict[str, object]:
    """An entry of a listing: git's hash of a small file, and of a large one its SHA-256 too."""
    path, num_bytes = folder / name, (folder / name).stat().st_size
    if name.endswith(".safetensors"):
        return {
            "path": name,
            "size": num_bytes,
            "oid": "0" * 40,
            "lfs": {"oid": _sha256(path), "size": num_bytes, "pointerSize": 134},
        }
    raw = path.read_bytes()
    return {"path": name, "size": num_bytes, "oid": hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()}
