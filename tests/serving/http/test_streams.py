"""Streams on the wire: at once, alive while nothing comes, without empty chunks, in lines that all clients read."""

import json
import re
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_servers import Running, events_of, running

import mxconv.serving.http.replying as replying

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "x"}]
PATHS = {
    CHAT: {"messages": HELLO, "max_tokens": 8},
    COMPLETIONS: {"prompt": "x", "max_tokens": 8},
    "/v1/responses": {"input": "x", "max_output_tokens": 8},
    "/v1/messages": {"messages": HELLO, "max_tokens": 8},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_begins_before_its_prompt_is_read_and_stays_alive(
    server: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replying, "SILENT_SECONDS", 0.05)
    server.gate.clear()  # nothing is computed from here on
    with httpx.stream("POST", server.url + path, json=PATHS[path] | {"stream": True}, timeout=60) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line)
        early = [next(lines) for _ in range(8)]
        assert early[-1] == ":" or early[-1] == ": "
        assert [line for line in early if line.startswith("data: ")] or path == COMPLETIONS
        server.gate.set()
        rest = [line for line in lines if not line.startswith(":")]
    assert [line for line in rest if line.startswith("data: ")]


def test_line_ends_of_other_alphabets_are_escaped(server: Running) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    for path, body in (
        (COMPLETIONS, {"prompt": text, "max_tokens": 1, "echo": True}),
        (CHAT, {"messages": HELLO, "guided_choice": [text], "max_tokens": 60}),
    ):
        with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=60) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        pieces = [json.loads(line)["choices"][0] for line in lines[:-1]]
        assert "".join(one.get("text", "") + one.get("delta", {}).get("content", "") for one in pieces).startswith(text)


def test_no_chunk_is_empty_and_no_logprob_is_lost(server: Running) -> None:
    """A character of several tokens, and a call, are one chunk each; the tokens come with it."""
    text = "né👧é"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"const": text}}}}}
    for more in ({"guided_choice": [text]}, {"tools": [tool], "tool_choice": "required"}):
        body: dict[str, Any] = {"messages": HELLO, "max_tokens": 80, "logprobs": True, "temperature": 0, **more}
        whole = server.post(CHAT, body).json()["choices"][0]
        chunks = [each["choices"][0] for each in events_of(server.post(CHAT, body | {"stream": True}))[:-1]]
        assert all(chunk["delta"] for chunk in chunks[:-1]) and chunks[-1]["finish_reason"] == whole["finish_reason"]
        sent = [one for chunk in chunks if chunk["logprobs"] for one in chunk["logprobs"]["content"]]
        assert sent == whole["logprobs"]["content"]
    pieces = [each["choices"][0] for each in events_of(server.post(COMPLETIONS, {
        "prompt": "x", "max_tokens": 60, "guided_choice": [text], "stream": True}))[:-1]]  # fmt: skip
    assert all(piece["text"] for piece in pieces[:-1]) and "".join(piece["text"] for piece in pieces) == text


def test_bytes_of_logprobs_are_the_text(server: Running) -> None:
    text = "Hi 👩‍👧 日本 é\n"
    body = {"messages": HELLO, "guided_choice": [text], "max_tokens": 80, "logprobs": True, "top_logprobs": 2}
    entries = server.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert bytes(one for entry in entries for one in entry["bytes"]).decode() == text
    assert all(other["bytes"] is not None for entry in entries for other in entry["top_logprobs"])


def test_the_usage_so_far_may_be_in_every_chunk(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = PATHS[CHAT] | {"stream": True, "stream_options": options, "ignore_eos": True}
    *chunks, _ = events_of(server.post(CHAT, body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 8 and counts[0] < 8


def said(response: httpx.Response) -> dict[str, str]:
    """Texts, tokens and log-probabilities of an answer or of a stream's events, joined by the name of their member."""
    found: dict[str, str] = defaultdict(str)
    names = ("text", "content", "delta", "token", "logprob", "tokens", "token_logprobs")

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, member in value.items():
                walk(key, member)
        elif isinstance(value, list):
            for member in value:
                walk(name, member)
        elif name in names and value is not None:
            found[name] += str(value)

    assert response.status_code == 200, response.text
    for line in re.findall(r"^(?:data: )?({.*})$", response.text, re.MULTILINE):
        walk("", json.loads(line))
    return dict(found)


def num_guessed(server: Running) -> float:
    """Tokens so far that drafts guessed."""
    text = server.get("/metrics").text
    levels = dict(re.findall(r'^mxconv_tokens_guessed_total\{level="(.+)"\} (.+)$', text, re.MULTILINE))
    return sum(float(count) for level, count in levels.items() if level != "target")


def test_without_drafts_the_target_alone_writes_the_same(package: Path) -> None:
    logprobs = {CHAT: {"logprobs": True}, COMPLETIONS: {"logprobs": 1}, "/v1/responses": {"top_logprobs": 1}}
    samplings: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 3}]
    with running(package, decoding={"num_draft_tokens": [3]}) as server:
        for path, asked, stream in product(PATHS, samplings, (False, True)):
            body = {name: 32 if name.startswith("max") else value for name, value in PATHS[path].items()}
            body |= logprobs.get(path, {}) | asked | {"stream": stream}
            begin = num_guessed(server)
            drafted = said(server.post(path, body | {"mxconv": {"drafts": None}}))
            between = num_guessed(server)
            assert said(server.post(path, body | {"mxconv": {"drafts": False}})) == drafted
            assert num_guessed(server) == between > begin
        for path, body in PATHS.items():
            error = server.post(path, body | {"mxconv": {"drafts": "no"}}).json()["error"]
            assert error["message"].startswith('mxconv.drafts: "no"; true or false')
            traced = server.post(path, body | {"mxconv": {"trace": True}})  # which other dialects have no place for
            assert traced.status_code == (200 if path in (CHAT, COMPLETIONS) else 400)
