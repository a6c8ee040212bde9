"""A bad line to an S3 server: answers of 503, connections that are cut, bodies that come slowly."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

HOP = {"connection", "transfer-encoding", "keep-alive"}
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>"
FAULTS = ("refused", "cut before", "cut after", "slow")


class Line:
    """What happens to each request."""

    def __init__(self, choose: Callable[[int], str]) -> None:
        """Args: choose: of FAULTS, or "gone" or "", for the number of a request."""
        self._choose = choose
        self._lock = threading.Lock()
        self.happened: Counter[str] = Counter()
        self.asked: list[str] = []  # "PUT /bucket/name"
        self.url = ""

    def fault(self, asked: str) -> str:
        with self._lock:
            self.asked.append(asked)
            fault = self._choose(self.happened.total())
            self.happened[fault] += 1
            return fault


def bad(seed: int, share: float) -> Line:
    """Each fault in a share of the requests."""
    chance = random.Random(seed)
    weights = [share] * len(FAULTS)
    return Line(lambda _: chance.choices((*FAULTS, ""), (*weights, 1 - sum(weights)))[0])


def gone_after(num_requests: int) -> Line:
    """From some request on nobody answers."""
    return Line(lambda number: "" if number < num_requests else "gone")


@contextmanager
def between(endpoint: str, line: Line) -> Iterator[Line]:
    """A proxy in threads of this process; its address is in the line."""
    handler = type("Handler", (_Handler,), {"line": line, "server_address": endpoint.removeprefix("http://")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    line.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield line
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    line: ClassVar[Line]
    server_address: ClassVar[str]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):  # the client has gone
            self.close_connection = True

    def do_GET(self) -> None:
        fault = self.line.fault(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length", 0))
        if fault in ("gone", "cut before"):
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if fault == "refused":
            self._answer(503, {"Content-Type": "application/xml"}, SLOW_DOWN, None)
            return
        status, headers, content = self._forward(body)
        if fault == "slow":
            time.sleep(0.05)
        self._answer(status, headers, content, len(content) // 2 if fault == "cut after" else None)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815  names of http.server

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server_address)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in {*HOP, "expect"}}
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        connection.close()
        return answer.status, kept, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes, cut_at: int | None) -> None:
        """The connection ends after so many bytes of the body; of no body already before the answer."""
        if cut_at == 0:
            self.close_connection = True
            return
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut_at])
        self.close_connection = cut_at is not None

    def log_message(self, *_: object) -> None:
        """Nothing."""
