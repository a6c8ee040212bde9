"""Clients that trickle, stop in the middle or hang up, many at a time beside good ones, who must not notice."""

import json
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_servers import LAST_SECONDS, Running, post_head, rest_of, running, wait_for

PATH = "/v1/completions"
SLOW_SECONDS = 2.0
GOOD: dict[str, Any] = {"prompt": "import os\n\ndef ", "max_tokens": 12, "seed": 7, "temperature": 0.9}
LONG = {"prompt": "import os\n", "max_tokens": 480, "temperature": 1.5, "n": 2, "stream": True}


def request_of(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    return post_head(PATH, len(raw)) + raw


def trickle(peer: socket.socket, raw: bytes, pause: float) -> bytes:
    """Send a byte at a time until all is sent or the other side answers; its answer to the end."""
    peer.settimeout(pause)
    for number in range(len(raw)):
        try:
            peer.sendall(raw[number : number + 1])
            if answer := peer.recv(1 << 16):
                return answer + rest_of(peer)
            return b""
        except TimeoutError:
            continue
        except OSError:
            return b""
    return rest_of(peer)


def endless_head(peer: socket.socket) -> None:
    assert trickle(peer, b"POST /v1/completions HTTP/1.1\r\nX-Slow: " + b"a" * 10_000, 0.02) == b""


def endless_body(peer: socket.socket) -> None:
    peer.sendall(post_head(PATH, 10_000))
    assert trickle(peer, b'{"prompt": "' + b"a" * 9000, 0.02)[9:12] == b"408"


def endless_chunks(peer: socket.socket) -> None:
    peer.sendall(post_head(PATH, None))
    assert trickle(peer, b"1\r\n \r\n" * 5000, 0.02)[9:12] == b"408"


def half_body(peer: socket.socket) -> None:
    raw = request_of(GOOD)
    peer.sendall(raw[:-20])
    assert rest_of(peer)[9:12] == b"408"


def half_body_and_gone(peer: socket.socket) -> None:
    peer.sendall(request_of(GOOD)[:-20])


def gone_inside_a_stream(peer: socket.socket) -> None:
    peer.sendall(request_of(LONG))
    assert peer.recv(1 << 16).startswith(b"HTTP/1.1 200")


def reset_inside_a_stream(peer: socket.socket) -> None:
    peer.sendall(request_of(LONG))
    peer.recv(100)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def gone_before_the_answer(peer: socket.socket) -> None:
    peer.sendall(request_of(LONG | {"stream": False}))


BAD: list[Callable[[socket.socket], None]] = [
    endless_head, endless_body, endless_chunks, half_body, half_body_and_gone, gone_inside_a_stream,
    reset_inside_a_stream, gone_before_the_answer,
]  # fmt: skip


@pytest.fixture(scope="module")
def patient(package: Path) -> Any:
    with running(package, slow_seconds=SLOW_SECONDS) as server:
        yield server


def test_good_requests_are_unharmed_beside_forty_bad_ones(patient: Running) -> None:
    expected = patient.post(PATH, GOOD).json()["choices"]

    def misbehave(number: int) -> None:
        with patient.connect() as peer:
            BAD[number % len(BAD)](peer)

    def behave(_: int) -> Any:
        return patient.post(PATH, GOOD).json()["choices"]

    begin = time.monotonic()
    with ThreadPoolExecutor(56) as pool:
        bad = [pool.submit(misbehave, number) for number in range(5 * len(BAD))]
        good = list(pool.map(behave, range(16)))
        for one in bad:
            one.result(LAST_SECONDS)
    assert good == [expected] * 16
    assert time.monotonic() - begin >= SLOW_SECONDS  # some were slow
    nobody_is_left(patient)
    assert patient.post(PATH, GOOD).json()["choices"] == expected


def test_slow_and_whole_is_good(patient: Running) -> None:
    expected = patient.post(PATH, GOOD).json()["choices"]
    with patient.connect() as peer:
        raw = request_of(GOOD).replace(b"Host:", b"Connection: close\r\nHost:")
        answer = trickle(peer, raw, 0.002)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and json.loads(body)["choices"] == expected


def nobody_is_left(server: Running) -> None:
    server.wait_until_idle()
    wait_for(lambda: not server.serving.server.server_state.tasks)
    wait_for(lambda: not server.serving.server.server_state.connections)
