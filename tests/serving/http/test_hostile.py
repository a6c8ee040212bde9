"""Requests that mean harm, and clients that trickle, stop or hang up: each is answered, and good ones never notice."""

import json
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from http_servers import LAST_SECONDS, NAME, Running, post_head, rest_of, running, wait_for

SCALE = float(os.environ.get("MXCONV_TEST_SCALE", "1"))
NUM_REQUESTS = round(150 * SCALE)
LONGEST_SECONDS = 60.0  # for an answer: nothing hangs
MOST_BYTES = 1_000_000  # of a body
MOST_GROWTH = 1 << 30  # bytes of the server's process
PATHS = {  # the least that each one takes
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
GOOD: dict[str, Any] = {"prompt": "import os\n\ndef ", "max_tokens": 8, "seed": 7, "temperature": 0.9}
STATUSES = {200, 400, 404, 405, 408, 413, 421, 429, 431, 503, 504}
Rng = random.Random

TEXTS = (
    "",
    "\0",
    "\ud800",
    "\u202eevil\u2066",
    "{{ 7 * 7 }}{% for x in range(10**9) %}x{% endfor %}",
    "<|im_end|>",
    "🙂" * 900,
    "a\r\nHost: b",
)
FIELDS = (
    "model", "prompt", "messages", "n", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "stream",
    "logprobs", "echo", "logit_bias", "tools", "tool_choice", "response_format", "guided_json", "guided_regex",
    "guided_grammar", "guided_choice", "structured_outputs", "json_schema", "grammar", "max_tokens", "mxconv",
    "stream_options", "tokens", "content", "with_pieces", "frequency_penalty", "metadata",
)  # fmt: skip


def nested(depth: int, inner: Any = None) -> Any:
    for level in range(depth):
        inner = {"items": inner or {}} if level % 2 else {"properties": {"a": inner or {}}}
    return inner


def tower(rng: Rng, size: int) -> dict[str, Any]:
    """Definitions that refer to each other, and mean exponentially much."""
    keyword = rng.choice(["allOf", "anyOf", "oneOf", "prefixItems"])
    levels = {
        f"d{level}": {"type": rng.choice(["object", "array"]), keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2}
        for level in range(size)
    }
    return {"$ref": "#/$defs/d0", "$defs": levels | {f"d{size}": rng.choice([{}, {"$ref": "#/$defs/d0"}])}}


SCHEMAS: list[Callable[[Rng], Any]] = [
    lambda rng: tower(rng, rng.choice([4, 20, 200])),
    lambda rng: nested(rng.choice([60, 400, 900])),
    lambda rng: {"allOf": [{"anyOf": [{"properties": {c * i: {}}} for c in "pq"]} for i in range(rng.randint(2, 14))]},
    lambda rng: {"allOf": [{"type": "string", "pattern": f"a{{{i * 7 + 1}}}.*b"} for i in range(rng.randint(2, 30))]},
    lambda rng: {"type": "object", "patternProperties": {f"^p{i}": {} for i in range(rng.choice([3, 50, 900]))}},
    lambda rng: {"type": "object", "properties": {f"p{i}": {} for i in range(rng.choice([3, 500, 4000]))}},
    lambda rng: {"enum": [*range(rng.choice([10, 5000])), *TEXTS[3:]]},
    lambda rng: {"type": "integer", "multipleOf": rng.choice([7, 9973, 12345677, 0, -1, 1e-300])},
    lambda rng: {"type": "array", "minItems": rng.choice([1, 10**8, 10**30]), "maxItems": rng.choice([2, 10**12])},
    lambda rng: {"type": "string", "minLength": rng.choice([5, 10**9, -1]), "maxLength": rng.choice([9, 10**18])},
    lambda rng: {"minimum": rng.choice([1e308, -(10**40), 0.1]), "maximum": rng.choice([5e-324, 10**400])},
    lambda rng: {"properties": {"a": {"$ref": rng.choice(REFERENCES)}}},
    lambda rng: {rng.choice(["type", "properties", "required", "items", "pattern", "$ref", "enum"]): any_value(rng)},
]  # fmt: skip
REFERENCES = ("#", "#/x", "http://127.0.0.1:9/", "file:///etc/passwd", "#/properties/a")
REGEXES = (
    "(a+)+$", "(x{1000}){1000}", "a{1000000000}", "(a|b)*a(a|b){20}", "(?=a)", "[" + "\\w" * 2000 + "]{1,900}",
    "(" * 3000, ".*" * 300, "(.*a.{12}){4}", "\\p{L}" * 4000, "(?i)" + "[\\w]" * 2000, "[a", "\0", "", "|" * 5000,
)  # fmt: skip
GRAMMARS = (
    'start: start start | "a" | ""', "start: nothing", 'root ::= "a"{0,99999999}', "root ::= " + "(" * 3000, "%json {",
    'start: "a"{1,100000000}', 'start: x{1000}\nx: y{1000}\ny: "a" | "b"', "start: <[999999999]>", 'start: "\0"',
    "start: a\na: a", "\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)), 'a40: "x"']),
    'start: %json {"x-guidance": {"lenient": true}, "not": {}}',
)  # fmt: skip


def any_value(rng: Rng, depth: int = 2) -> Any:
    leaves = [
        None,
        True,
        rng.choice([0, -1, 2**63, 2**64, 10**30, 1e308, -0.0, 0.5]),
        rng.choice(TEXTS),
        rng.choice(REGEXES),
    ]
    if depth == 0 or rng.random() < 0.6:
        return rng.choice(leaves)
    inner = [any_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return inner if rng.random() < 0.5 else {rng.choice([*FIELDS, *TEXTS]): one for one in inner}


def tool(rng: Rng) -> dict[str, Any]:
    name = rng.choice(["f", "a.b-c", "x\n\u0007", "{{x}}", "\u202e", "x" * 65, ""])
    parameters = rng.choice(SCHEMAS)(rng) | {"description": rng.choice(TEXTS)}
    return {"type": "function", "function": {"name": name, "description": rng.choice(TEXTS), "parameters": parameters}}


def flat_tool(rng: Rng) -> dict[str, Any]:
    """A tool as the other dialects have it."""
    function = tool(rng)["function"]
    return {"name": function["name"], rng.choice(["parameters", "input_schema"]): function["parameters"]}


FORGED: list[Callable[[Rng], dict[str, Any]]] = [  # fields over the least ones
    *[lambda rng: {}] * 3,  # honest requests
    lambda rng: {rng.choice(FIELDS): any_value(rng)},
    lambda rng: {rng.choice(FIELDS): any_value(rng), rng.choice(FIELDS): any_value(rng)},
    lambda rng: {rng.choice(["guided_json", "json_schema"]): rng.choice(SCHEMAS)(rng), "stream": rng.random() < 0.3},
    lambda rng: {"n": 4, "structured_outputs": {"json": rng.choice(SCHEMAS)(rng)}},
    lambda rng: {"guided_regex": rng.choice(REGEXES), "n": rng.choice([1, 8])},
    lambda rng: {rng.choice(["grammar", "guided_grammar"]): rng.choice(GRAMMARS)},
    lambda rng: {"guided_choice": [rng.choice(TEXTS) + str(i) for i in range(rng.choice([1, 1024, 3000]))]},
    lambda rng: {"tools": [tool(rng) for _ in range(rng.choice([1, 3, 129, 900]))], "tool_choice": "required"},
    lambda rng: {"tools": [flat_tool(rng) for _ in range(rng.choice([1, 200]))], "tool_choice": {"type": "any"}},
    lambda rng: {"tools": [{"type": "function", **flat_tool(rng)}], "tool_choice": "required"},
    lambda rng: {"text": {"format": {"type": "json_schema", "name": "x", "schema": rng.choice(SCHEMAS)(rng)}}},
    lambda rng: {"input": [{"type": rng.choice(["message", "function_call", *TEXTS]), "content": any_value(rng)}] * 9},
    lambda rng: {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": any_value(rng)}]}]},
    lambda rng: {"messages": [{"role": rng.choice(TEXTS), "content": rng.choice(TEXTS)}] * rng.choice([1, 3000])},
    lambda rng: {"prompt": [rng.choice(TEXTS)] * rng.choice([1, 100, 129]), "n": rng.choice([1, 64, 128, 10**9])},
    lambda rng: {"logit_bias": {str(i * 10 ** rng.choice([0, 8])): rng.choice([100, -100, 1e9]) for i in range(2000)}},
    lambda rng: {"model": rng.choice(["gpt-9", "../../etc", NAME]), "stop": [rng.choice(TEXTS)] * rng.choice([1, 17])},
    lambda rng: {"prompt": [[rng.choice([0, 5, 10**9, -1])] * 3] * 5, "tokens": [rng.choice([1, 2**31, -5])] * 9},
]  # fmt: skip


def body_of(rng: Rng, least: dict[str, Any]) -> bytes:
    try:
        raw = json.dumps(least | rng.choice(FORGED)(rng)).encode()
    except RecursionError:
        raw = b"[" * 5000
    cut = rng.randrange(len(raw))
    kind = rng.random()
    if kind < 0.1:
        return raw[:cut]
    if kind < 0.15:
        return raw[:cut] + rng.randbytes(3) + raw[cut:]
    return rng.choice([b"[" * 100_000, b'{"a":' * 30_000, b"\xff\xfe", b"nul", b"9" * 9000]) if kind < 0.2 else raw


def send(server: Running, client: httpx.Client, rng: Rng) -> int:
    """A request's status; 0 where the server closed the connection on something that is no HTTP."""
    path, least = rng.choice(list(PATHS.items()))
    raw, kind = body_of(rng, least), rng.random()
    if kind < 0.05:  # a request that ends early, two in one packet, or no request at all
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        whole = f"{head}{len(raw)}\r\n\r\n".encode() + raw
        last = rng.choice(
            [whole * 2, whole[:-1], f"{head}-1\r\n\r\n".encode(), b"\0" * 99, whole.replace(b"\r\n", b"\n\n")]
        )
        with server.connect() as peer:
            with suppress(OSError):  # of a body that is too large it reads a part
                peer.sendall(last)
                peer.shutdown(1)
            answer = rest_of(peer)
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
    method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS"]) if kind < 0.08 else "POST"
    content_type = rng.choice(["text/plain", "application/xml", "application/json; charset=utf-7"])
    headers = {"Content-Type": content_type if kind > 0.95 else "application/json"}
    try:
        response = client.request(method, server.url + path, content=raw, headers=headers)
    except (httpx.NetworkError, httpx.RemoteProtocolError):  # it need not read all of what is too large
        assert len(raw) > MOST_BYTES
        return 0
    if response.status_code >= 400 and not response.headers["content-type"].startswith("text/plain"):
        others = set() if path.startswith("/v1/messages") else {"param", "code"}
        assert set(response.json()["error"]) == {"message", "type"} | others
    return response.status_code


@pytest.fixture(scope="module")
def besieged(package: Any) -> Any:
    with running(package, slow_seconds=1.0, max_body_bytes=MOST_BYTES, request_seconds=30.0) as server:
        yield server


def test_nothing_that_means_harm_does_any(besieged: Running, capsys: pytest.CaptureFixture[str]) -> None:
    expected = besieged.post("/v1/completions", GOOD).json()["choices"]
    process, statuses = psutil.Process(), Counter[int]()
    before = process.memory_info().rss
    with httpx.Client(timeout=LONGEST_SECONDS) as client:
        for number in range(NUM_REQUESTS):
            status = send(besieged, client, random.Random(number))
            assert status == 0 or status in STATUSES, number
            statuses[status] += 1
            if number % 10 == 9:
                assert besieged.post("/v1/completions", GOOD).json()["choices"] == expected, number
    besieged.wait_until_idle()
    grown = process.memory_info().rss - before
    assert grown < MOST_GROWTH
    assert statuses[200] > NUM_REQUESTS / 20 and statuses[400] > NUM_REQUESTS / 5  # both were reached
    if SCALE > 1:
        with capsys.disabled():
            print(f"{NUM_REQUESTS} requests: {dict(sorted(statuses.items()))}, {grown / 2**20:.0f} MiB")


PATH = "/v1/completions"
SLOW_SECONDS = 2.0
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
