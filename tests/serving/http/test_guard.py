"""Keys, hosts, sizes and slowness: what stands before the application."""

import re
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from http_servers import NAME, Running, post_head, running

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
    with pytest.raises(anthropic.AuthenticationError):
        guarded.anthropic("wrong-key").messages.count_tokens(model=NAME, messages=[{"role": "user", "content": "x"}])


def test_the_right_key_opens_and_the_page_and_health_need_none(guarded: Running) -> None:
    answer = guarded.client(KEY).completions.create(model=NAME, **BODY)  # type: ignore[call-overload]
    assert answer.choices[0].text
    assert guarded.get("/").status_code == guarded.get("/health").status_code == 200
    assert guarded.get("/v1/models").status_code == 401
    assert guarded.post("/tokenize", {"prompt": "x"}).status_code == 401
    count, body = "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}
    for headers in ({"x-api-key": KEY}, {"Authorization": f"Bearer {KEY}", "x-api-key": ""}):
        assert guarded.post(count, body, headers=headers).status_code == 200
    for told in (
        guarded.post(count, body, headers={"Authorization": KEY}),
        guarded.post(count, body | {"system": "x" * 3000}, headers={"x-api-key": KEY}),
    ):
        found = told.json()
        kinds = {401: "authentication_error", 413: "request_too_large"}
        assert found["type"] == "error" and found["error"]["type"] == kinds[told.status_code]


def test_a_short_key_is_none(package: Path) -> None:
    with pytest.raises(ModelError, match="API key: 3 characters"), running(package, api_key="abc"):
        pass


def test_limits_of_prompts_and_answers_are_told(guarded: Running) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    for change, message in (({"prompt": "x " * 60}, "at most 50 are taken"),):
        response = guarded.post(PATH, BODY | change, headers=headers)
        assert response.status_code == 400 and message in response.json()["error"]["message"]
    clamped = guarded.post(PATH, BODY | {"max_tokens": 21, "ignore_eos": True}, headers=headers).json()
    assert clamped["usage"]["completion_tokens"] == 20 and "at most 20 are given" in clamped["mxconv"]["notes"][0]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused(guarded: Running, chunked: bool) -> None:
    raw = b'{"prompt": "' + b"x" * 3000 + b'"}'
    message = post_head(PATH, 3_000_000, KEY)  # refused before any of it comes
    if chunked:
        message = post_head(PATH, None, KEY) + b"%x\r\n" % len(raw) + raw + b"\r\n"
    with guarded.connect() as peer:
        peer.sendall(message)
        assert peer.recv(4096).startswith(b"HTTP/1.1 413")


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
    page = server.get("/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "*" not in policy
    assert NAME in page.text and not re.search(r"(src|href)=[\"'](?!#|data:)", page.text)


@pytest.mark.parametrize(
    ("allowed", "origin", "is_allowed"),
    [
        (("http://localhost:3000", "app://obsidian.md"), "app://obsidian.md", True),
        (("http://localhost:3000",), "http://localhost:3001", False),
        (("http://localhost:3000",), "null", False),
        (("*",), "null", True),
        ((), "http://localhost:3000", False),
    ],
)
def test_origins_that_were_named_may_ask_and_read(
    package: Path, allowed: tuple[str, ...], origin: str, is_allowed: bool
) -> None:
    with running(package, ["target"], api_key=KEY, allowed_origins=allowed) as found:
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-os",
        }
        preflight = httpx.options(found.url + PATH, headers={"Origin": origin, **asked})
        assert preflight.status_code == (200 if is_allowed else 400 if allowed else 401)
        key = {"Authorization": f"Bearer {KEY}", "Origin": origin}
        answers = [found.post(PATH, BODY, headers=key), found.post(PATH, BODY | {"stream": True}, headers=key)]
        refused = found.post(PATH, BODY, headers={"Origin": origin})
        assert [each.status_code for each in answers] == [200, 200] and refused.status_code == 401
        name = "*" if allowed == ("*",) else origin
        for answer in (preflight, *answers, refused):
            assert answer.headers.get("access-control-allow-origin") == (name if is_allowed else None)
        asked_for = preflight.headers.get("access-control-allow-headers", "")
        assert not is_allowed or asked_for == asked["Access-Control-Request-Headers"]


def test_a_head_is_a_get_without_its_body(server: Running) -> None:
    for path in ("/health", "/", "/v1/models", "/metrics", f"/v1/models/{NAME}", "/openapi.json"):
        head = httpx.head(server.url + path)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["content-type"] == server.get(path).headers["content-type"]
    assert httpx.head(server.url + PATH).status_code == 405


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/tokenize", "/tokenize"),
    ],
)
def test_a_wrong_base_url_is_told_the_right_path(server: Running, path: str, meant: str) -> None:
    response = server.post(path, BODY)
    assert response.status_code == 404
    assert f"{meant} is there: correct the client's base URL." in response.json()["error"]["message"]


def test_a_slash_too_many_is_none(server: Running) -> None:
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()
    assert server.post(PATH + "/", BODY).status_code == 200


def test_a_port_that_is_taken_is_told(server: Running) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ModelError, match=rf"--port {port}: cannot listen there .*in use"):
        listen("127.0.0.1", port)
    with pytest.raises(ModelError, match=r"--host nowhere\.invalid"):
        listen("nowhere.invalid", 0)
