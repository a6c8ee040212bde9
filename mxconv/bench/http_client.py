"""One request over HTTP, its chunks with the moments at which they came."""

import json
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from mxconv.errors import ModelError
from mxconv.text.messages import Prompt

SECONDS = 900.0  # of silence after which a server is given up
DONE = b"[DONE]"
MOST_CHARACTERS = 300  # of a message


@dataclass(frozen=True)
class CompletionRequest:
    """A request to /v1/completions, or where its prompt is messages to /v1/chat/completions."""

    prompt: Prompt
    max_tokens: int
    seed: int  # of its draws
    temperature: float = 0.0  # 0 is greedy

    @property
    def path(self) -> str:
        """The endpoint's path."""
        return "/v1/completions" if isinstance(self.prompt, str) else "/v1/chat/completions"

    @property
    def body(self) -> dict[str, object]:
        """The request's members: streamed, with the ids of tokens."""
        return {
            "prompt" if isinstance(self.prompt, str) else "messages": self.prompt,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "temperature": self.temperature,
            "stream": True,
            "mxconv": {"trace": True},
        }


@dataclass
class TimedAnswer:
    """An answer, chunk by chunk."""

    began: float  # when it was requested, by the clock of `time.perf_counter`
    arrived: list[float] = field(default_factory=list)  # when each chunk with tokens came
    num_tokens: list[int] = field(default_factory=list)  # of each of these chunks
    token_ids: list[int] = field(default_factory=list)
    error: str | None = None  # why there is no whole answer; None where there is one

    @property
    def is_ok(self) -> bool:
        """Whether the answer is whole."""
        return self.error is None

    @property
    def first_token_seconds(self) -> float:
        """From the request to its first token."""
        return self.arrived[0] - self.began

    @property
    def seconds(self) -> float:
        """From the request to its last token."""
        return self.arrived[-1] - self.began

    @property
    def chunk_gaps(self) -> list[float]:
        """Seconds between chunks: how long a reader sees nothing new."""
        return [after - before for before, after in zip(self.arrived, self.arrived[1:], strict=False)]

    @property
    def token_gaps(self) -> list[float]:
        """Seconds a token after the first chunk: the tokens of a chunk share the gap before it."""
        shared = zip(self.chunk_gaps, self.num_tokens[1:], strict=True)
        return [gap / number for gap, number in shared for _ in range(number)]


class Client:
    """Sends requests to one server; used by many threads at a time.

    Args:
        url: of the server, without /v1.
        api_key: that it requires.

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
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine, by its address."""
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
            return [str(name) for name in json.loads(response.read())["data"][0]["mxconv"]["levels"]]
        except (OSError, HTTPException) as error:
            raise ModelError(f"{self.url}: no answer ({error}); a running `mxconv serve` is required.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ModelError(
                f"{self.url}/v1/models: no levels in its answer (status {response.status}); that of `mxconv serve` is "
                "required. Check the address, and MXCONV_API_KEY if it wants a key."
            ) from error

    def complete(self, request: CompletionRequest) -> TimedAnswer:
        """Send a request and read the stream to its end; the answer says what went wrong."""
        answer = TimedAnswer(time.perf_counter())
        try:
            with self._send("POST", request.path, request.body) as response:
                if response.status == 200:
                    answer.error = _read(response, answer)
                else:
                    answer.error = f"status {response.status}: {_message(response.read())}"
        except (OSError, HTTPException) as error:
            answer.error = f"{type(error).__name__}: {error}"
        return answer

    def _send(self, method: str, path: str, body: dict[str, object] | None) -> HTTPResponse:
        """The response on a connection of its own, which closes when it was read."""
        connection = self._kind(self._host or "", self._port, timeout=SECONDS)
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, self._path + path, raw, self._headers)
        return connection.getresponse()


def _read(response: HTTPResponse, answer: TimedAnswer) -> str | None:
    """Read events until the last one; returns why they do not make a whole answer."""
    for line in response:
        if not line.startswith(b"data: "):
            continue
        event = line.removeprefix(b"data: ").strip()
        if event == DONE:
            return None if answer.arrived else "no tokens"
        moment, members = time.perf_counter(), _parsed(event)
        if "choices" not in members:
            return _message(event)
        own = [choice.get("mxconv") or {"tokens": []} for choice in members["choices"]]
        if tokens := [token["id"] for each in own for token in each["tokens"]]:
            answer.arrived.append(moment)
            answer.num_tokens.append(len(tokens))
            answer.token_ids += tokens
    return "the stream was cut"


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(raw: bytes) -> str:
    """The message of an error in OpenAI's shape, or else the text itself."""
    error = _parsed(raw).get("error")
    text = error.get("message") if isinstance(error, dict) else None
    return str(text or raw.decode(errors="replace"))[:MOST_CHARACTERS]
