"""Keys, hosts, sizes and slowness: what stands before the application."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from http_servers import NAME, Running, post_head, running, wait_for

from mxconv.errors import ModelError
from mxconv.serving.http.server import listen

KEY = "correct-horse"
PATH = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 2, "seed": 1}


@pytest.fixture(scope="module")
def guarded(package: Path) -> Iterator[Running]:
    limits = {"max_body_bytes": 2000, "slow_seconds": 0.5, "max_prompt_tokens": 50, "max_new_tokens": 20}
    with running(package, api_key=KEY, **limits) as found:
        yield found
        found.wait_until_idle()


@pytest.mark.parametrize("key", ["wrong", KEY + "x", KEY[:-1], "clé"])
def test_a_wrong_key_is_refused(guarded: Running, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}".encode()}
    for response in (guarded.post(PATH, BODY, headers=headers), guarded.get("/metrics", headers=headers)):
        assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        guarded.client("wrong-key").models.list()


def test_the_right_key_opens_and_the_page_and_health_need_none(guarded: Running) -> None:
    answer = guarded.client(KEY).completions.create(model=NAME, **BODY)  # type: ignore[call-overload]
    assert answer.choices[0].text
    assert guarded.get("/").status_code == guarded.get("/health").status_code == 200
    assert guarded.get("/v1/models").status_code == 401
    assert guarded.post("/tokenize", {"prompt": "x"}).status_code == 401


def test_a_short_key_is_none(package: Path) -> None:
    with pytest.raises(ModelError, match="API key: 3 characters"), running(package, api_key="abc"):
        pass


def test_limits_of_prompts_and_answers_are_told(guarded: Running) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    for change, message in (
        ({"prompt": "x " * 60}, "at most 50 are taken"),
        ({"max_tokens": 21}, "at most 20 are given"),
    ):
        response = guarded.post(PATH, BODY | change, headers=headers)
        assert response.status_code == 400 and message in response.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(guarded: Running, chunked: bool) -> None:
    raw = b'{"prompt": "' + b"x" * 3000 + b'"}'
    message = post_head(PATH, 3_000_000, KEY)  # refused before any of it comes
    if chunked:
        message = post_head(PATH, None, KEY) + b"%x\r\n" % len(raw) + raw + b"\r\n"
    with guarded.connect() as peer:
        peer.sendall(message)
        assert peer.recv(4096).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"POST /v1/comp", b""),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ", b""),
        (post_head(PATH, 50, KEY) + b"{", b"408"),
    ],
)
def test_slow_requests_are_let_go(guarded: Running, sent: bytes, status: bytes) -> None:
    with guarded.connect() as peer:
        peer.sendall(sent)
        answer = b""
        while more := peer.recv(4096):
            answer += more
    assert answer[9:12] == status


def test_a_host_that_is_not_this_machine_is_refused_where_there_is_no_key(server: Running, guarded: Running) -> None:
    for host, status in (("evil.example", 421), ("evil.example:80", 421), ("localhost:9", 200), ("[::1]:9", 200)):
        assert server.get("/health", headers={"Host": host}).status_code == status, host
    assert guarded.get("/health", headers={"Host": "evil.example"}).status_code == 200


def test_other_sites_may_not_read_and_responses_are_not_sniffed(server: Running) -> None:
    response = server.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.headers["x-content-type-options"] == "nosniff"
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(server.url + PATH, headers=preflight).status_code == 405


def test_malformed_and_cut_requests_leave_nothing_behind(server: Running) -> None:
    whole = post_head(PATH, 100) + b'{"prompt": "import os", "max_tokens": 400'
    noise = (b"\0" * 64, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 50, b"GET /" + b"a" * 70_000, b"\x16\x03\x01\x02\0")
    for sent in (*(whole[:length] for length in range(0, len(whole), 3)), *noise):
        with server.connect() as peer:
            peer.sendall(sent)
    server.wait_until_idle()
    wait_for(lambda: not server.serving.server.server_state.tasks)
    assert server.post(PATH, BODY).status_code == 200


def test_a_port_that_is_taken_is_told(server: Running) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ModelError, match=rf"--port {port}: cannot listen there .*in use"):
        listen("127.0.0.1", port)
    with pytest.raises(ModelError, match=r"--host nowhere\.invalid"):
        listen("nowhere.invalid", 0)
