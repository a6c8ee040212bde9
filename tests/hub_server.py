"""A model hub on loopback: the part of the HTTP interface that huggingface_hub uses to list and download.

    with HubServer({"org/tiny": {"main": folder}}) as hub:
        subprocess.run([...], env=hub.environment(cache_folder))

Every folder is a commit, named by a hash of its content. Clients must be processes of their own: huggingface_hub
reads its environment once, when it is imported.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_token_of_the_tests"


class HubServer:
    """Serves model repositories until its `with` block ends.

    Attributes:
        repositories: id -> branch or tag -> folder; may be changed while it serves.
        gated: ids whose files (not their listing) need TOKEN and, as on the real Hub, accepted terms.
        private: ids that do not exist for anyone without TOKEN.
        forbidden: ids that answer 403.
        status: answer every request with this status, when set.
        cut: names of files whose next download breaks off in the middle.
        on_request: called with "GET /path" before each request is answered.
        requests: every request so far, "GET /path".
    """

    def __init__(self, repositories: Mapping[str, Mapping[str, Path]]) -> None:
        self.repositories = {name: dict(revisions) for name, revisions in repositories.items()}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.forbidden: set[str] = set()
        self.status: int | None = None
        self.cut: set[str] = set()
        self.on_request: Callable[[str], object] = self._ignore
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
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


def commit_of(folder: Path) -> str:
    """The commit that the server gives a folder: 40 hex digits of its file names and contents."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(path.encode() + b"\0" + (folder / path).read_bytes())
    return digest.hexdigest()[:40]


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

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        raw = urlsplit(self.path).path  # a branch may hold slashes, quoted
        path = unquote(raw)
        self.hub.requests.append(f"{self.command} {path}")
        self.hub.on_request(f"{self.command} {path}")
        if self.hub.status is not None:
            self._refuse(self.hub.status, None)
            return
        is_api = path.startswith("/api/models/")
        parts = [unquote(part) for part in raw.removeprefix("/api/models").strip("/").split("/")]
        repo_id, rest = "/".join(parts[:2]), parts[2:]
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
            self._send_json([{"type": "file", "oid": "0" * 40, **_described(folder, name)} for name in _files(folder)])
        elif is_api:
            siblings = [{"rfilename": name} for name in _files(folder)]
            self._send_json({"id": repo_id, "sha": commit_of(folder), "siblings": siblings})
        elif repo_id in self.hub.gated and not is_known:
            self._refuse(401, "GatedRepo")
        else:
            self._send_file(folder, "/".join(rest[2:]))

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
        content = (folder / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit_of(folder)}
        if self.command == "GET" and name in self.hub.cut:
            self.hub.cut.remove(name)
            self._send(200, content, headers, num_sent=len(content) // 2)
            self.close_connection = True
            return
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            self._send(200, content, headers | {"Accept-Ranges": "bytes"})
            return
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), int(last) + 1 if last else len(content)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(206, content[begin:end], headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str], num_sent: int | None = None) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:num_sent])


def _described(folder: Path, name: str) -> dict[str, object]:
    return {"path": name, "size": (folder / name).stat().st_size}
