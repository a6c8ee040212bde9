"""One request over HTTP, its chunks with the moments at which they came."""

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from mxconv.bench.serving.asked import Answered, Asked
from mxconv.errors import ModelError

SECONDS = 900.0  # of silence after which a server is given up
DONE = b"[DONE]"
MOST_SAID = 300  # characters of a message


class Client:
    """Asks one server; used by many threads at a time.

    Args:
        url: of the server, without /v1.
        api_key: that it asks for.

    Raises:
        ModelError: no URL of HTTP.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname, parts.port
        except ValueError:
            self._host = self._port = None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ModelError(f"--url {url}: no address of a server; one like http://127.0.0.1:8000 is required.")
        self.url = url
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine, as its address tells."""
        try:
            return ip_address(self._host or "").is_loopback
        except ValueError:
            return self._host == "localhost"

    def levels(self) -> list[str]:
        """The levels of the model that the server serves, its target first.

        Raises:
            ModelError: nobody answers there, or not as mxconv does.
        """
        try:
            response = self._send("GET", "/v1/models", None)
            said = json.loads(response.read())
            names = said["data"][0]["mxconv"]["levels"]
            return [str(name) for name in names]
        except (OSError, HTTPException) as error:
            raise ModelError(f"{self.url}: no answer ({error}); a running `mxconv serve` is required.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"{self.url}/v1/models: no levels in its answer (status {response.status}); that of `mxconv serve` is "
                "required. Check the address, and MXCONV_API_KEY if it wants a key."
            ) from error

    def ask(self, asked: Asked) -> Answered:
        """Send it and read the stream to its end; what goes wrong is in the answer."""
        answered = Answered(time.perf_counter())
        try:
            response = self._send("POST", asked.path, asked.body)
            if response.status != 200:
                answered.error = f"status {response.status}: {_message(response.read())}"
            else:
                _read(response, answered)
        except (OSError, HTTPException) as error:
            answered.error = f"{type(error).__name__}: {error}"
        return answered

    def _send(self, method: str, path: str, body: dict[str, object] | None) -> HTTPResponse:
        """On a connection of its own, which the response closes when it was read."""
        connection = self._kind(self._host or "", self._port, timeout=SECONDS)
        headers = {**self._headers, "Connection": "close"}
        connection.request(method, self._path + path, None if body is None else json.dumps(body).encode(), headers)
        return connection.getresponse()


def _read(response: HTTPResponse, answered: Answered) -> None:
    """Events until the last one."""
    with response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            event = line.removeprefix(b"data: ").strip()
            if event == DONE:
                if not answered.arrived:
                    answered.error = "no tokens"
                return
            moment = time.perf_counter()
            members = _parsed(event)
            if "choices" not in members:
                answered.error = _message(event)
                return
            _take(members, moment, answered)
    answered.error = "the stream was cut"


def _take(members: dict[str, Any], moment: float, answered: Answered) -> None:
    """A chunk that may hold tokens."""
    tokens = [
        token["id"] for choice in members["choices"] for token in (choice.get("mxconv") or {"tokens": []})["tokens"]
    ]
    if tokens:
        answered.arrived.append(moment)
        answered.num_tokens.append(len(tokens))
        answered.token_ids += tokens


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(raw: bytes) -> str:
    """Of an error in OpenAI's shape, or else the text itself."""
    error = _parsed(raw).get("error")
    said = error.get("message") if isinstance(error, dict) else None
    return str(said or raw.decode(errors="replace"))[:MOST_SAID]
