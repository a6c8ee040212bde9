"""Real servers on loopback ports, with a small trained model that has a chat template, and clients of them."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
from packages import quantize
from trained_levels import TRAINED

from mxconv.decode import Options, TextModel, load
from mxconv.engine.kv_pool import KvDtype
from mxconv.serving.http.serve_options import ServeOptions
from mxconv.serving.http.server import Serving

TEMPLATE = "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n{% endfor %}import "
NAME = "pylib"
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2, 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SECONDS = 60.0
LAST_SECONDS = 30.0


def chat_package(folder: Path, generation_config: dict[str, Any] | None = None, template: str = TEMPLATE) -> Path:
    """target <- mxfp4 <- prompt-lookup; tests only read it."""
    shutil.copytree(TRAINED, folder / "source")
    if generation_config is not None:
        (folder / "source" / "generation_config.json").write_text(json.dumps(generation_config))
    (folder / "source" / "chat_template.jinja").write_text(template)
    quantize(folder / "source", folder / NAME, drafts=("prompt-lookup",))
    return folder / NAME


@dataclass
class Running:
    """A server, its first model, and how many steps its engines may take: `gate` stops them between two."""

    url: str
    model: TextModel
    serving: Serving
    gate: threading.Event
    thread: threading.Thread
    clients: list[Any] = field(default_factory=list)  # closed when the server ends

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=SECONDS, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=SECONDS, **options)

    def client(self, api_key: str = "none") -> openai.OpenAI:
        self.clients.append(openai.OpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=0, timeout=SECONDS))
        return self.clients[-1]  # type: ignore[no-any-return]

    def anthropic(self, api_key: str = "none") -> anthropic.Anthropic:
        self.clients.append(anthropic.Anthropic(base_url=self.url, api_key=api_key, max_retries=0, timeout=SECONDS))
        return self.clients[-1]  # type: ignore[no-any-return]

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=SECONDS)

    def wait_until_idle(self) -> None:
        """Every sequence is freed: at the admission, and in the engine."""
        wait_for(lambda: self.serving.admission.num_open == 0)
        wait_for(lambda: self.serving.admission.thread.num_watched == 0 and self.serving.admission.thread.is_idle)


def wait_for(condition: Any, seconds: float = SECONDS) -> None:
    ended = threading.Event()
    for _ in range(round(seconds / 0.01)):
        if condition():
            return
        ended.wait(0.01)
    raise AssertionError("it did not happen")


@contextmanager
def running(
    package: Path,
    levels: Sequence[str] | None = None,
    kv_dtype: KvDtype = "fp32",
    others: Mapping[str, Path] | None = None,
    decoding: Options | None = None,
    memory: int | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A server in this process, on a port of its own; `others` are further packages by their names.

    `decoding` says how much is drafted.
    """
    listens = threading.Event()
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(path, num_threads=1, levels=levels, kv_dtype=kv_dtype, memory=memory))
            for name, path in {NAME: package, **(others or {})}.items()
        }
        wanted = ServeOptions(port=0, **options)
        serving = Serving(models, decoding or {}, wanted, lambda _: listens.set())
        gate = _gated(serving)
        thread = threading.Thread(target=serving.run)
        thread.start()
        try:
            assert listens.wait(SECONDS)
            found = Running(serving.url, models[NAME], serving, gate, thread)
            yield found
            for client in found.clients:
                client.close()
        finally:
            gate.set()
            serving.server.stop()
            thread.join(SECONDS)
            assert not thread.is_alive()


def _gated(serving: Serving) -> threading.Event:
    gate = threading.Event()

    def step_through_gate(step: Any) -> Any:
        assert gate.wait(SECONDS)
        return step()

    for engine in serving.admission.thread.engines:
        engine.step = partial(step_through_gate, engine.step)  # type: ignore[method-assign]
    gate.set()
    return gate


@contextmanager
def serve(package: Path, *flags: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`mxconv serve` as a process of its own, and the line that it printed."""
    command = [sys.executable, "-m", "mxconv.cli.main", "serve", str(package), "--port", "0", "--threads", "1", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def events_of(response: httpx.Response) -> list[Any]:
    """The objects of a stream; the last is "[DONE]" or an error."""
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    texts = [line.removeprefix("data: ") for line in lines]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def post_head(path: str, num_bytes: int | None, key: str = "none") -> bytes:
    """The head of a request as it goes over the wire; without a length its body comes in chunks."""
    length = "Transfer-Encoding: chunked" if num_bytes is None else f"Content-Length: {num_bytes}"
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}", length)
    return "".join(f"{line}\r\n" for line in (*lines, "Content-Type: application/json")).encode() + b"\r\n"


def rest_of(peer: socket.socket) -> bytes:
    """What the server still sends until it closes."""
    peer.settimeout(LAST_SECONDS)
    answer = b""
    try:
        while more := peer.recv(1 << 16):
            answer += more
    except ConnectionError:
        pass
    return answer
