"""/v1/messages through Anthropic's own client: what a chat says, in Anthropic's form, errors included."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest
from http_servers import NAME, Running, running, wait_for
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASKED: list[Any] = [{"role": "user", "content": "Which module?"}]
BODY: dict[str, Any] = {"messages": ASKED, "max_tokens": 24}
SEED = {"seed": 9}
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2, 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"name": "add", "description": "Adds.", "input_schema": NUMBERS, "cache_control": {"type": "ephemeral"}},
    {"type": "custom", "name": "get_time", "input_schema": {"type": "object", "additionalProperties": False}},
]


def chat_text(server: Running, **body: Any) -> str:
    """What the same request says at /v1/chat/completions."""
    answer = server.post("/v1/chat/completions", {"max_tokens": 24} | body).json()
    return answer["choices"][0]["message"]["content"]  # type: ignore[no-any-return]


def text_of(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text  # type: ignore[no-any-return]


def told(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"type", "error"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    return body["error"]  # type: ignore[no-any-return]


def test_a_message_is_what_a_chat_says(server: Running) -> None:
    system: list[Any] = [{"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}}]
    system += [{"type": "text", "text": "brief."}]
    turns = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "os"}]}, *ASKED]
    message = server.anthropic().messages.create(
        model=NAME, max_tokens=24, messages=turns, system=system, metadata={"user_id": "me"}, extra_body=SEED
    )
    same = [{"role": "system", "content": "Be brief."}, *ASKED, {"role": "assistant", "content": "os"}, *ASKED]
    assert text_of(message) == chat_text(server, messages=same, **SEED)
    assert message.type == "message" and message.role == "assistant" and message.model == NAME
    assert message.id.startswith("msg_") and message.stop_reason == "max_tokens" and message.stop_sequence is None
    assert message.usage.output_tokens == 24


def test_a_stream_adds_up_to_the_message(server: Running) -> None:
    client, options = server.anthropic(), {"model": NAME, **BODY, "extra_body": SEED}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == text_of(whole)
        streamed = stream.get_final_message()
    assert streamed.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})


def test_the_events_of_a_stream_have_names_and_an_order(server: Running) -> None:
    lines = server.post(PATH, BODY | {"stream": True}).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in events] == names
    assert names[:2] == ["message_start", "content_block_start"] and set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_is_named(server: Running) -> None:
    text = chat_text(server, messages=ASKED, **SEED)
    stop = text[5:9]
    options: dict[str, Any] = {"model": NAME, **BODY, "stop_sequences": ["never written", stop], "extra_body": SEED}
    message = server.anthropic().messages.create(**options)
    assert text_of(message) == text[: text.index(stop)]
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    with server.anthropic().messages.stream(**options) as stream:
        assert stream.get_final_message().stop_sequence == stop


def test_schemas_shape_the_text(server: Running) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": NUMBERS}}
    message = server.anthropic().messages.create(
        model=NAME, messages=ASKED, max_tokens=60, output_config=config, extra_body=SEED
    )
    jsonschema.validate(json.loads(text_of(message)), NUMBERS)
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}]
)
def test_a_demanded_call_is_made_and_a_conversation_goes_on_with_its_result(
    server: Running, choice: dict[str, Any]
) -> None:
    client = server.anthropic()
    options: dict[str, Any] = {"model": NAME, "tools": TOOLS, "max_tokens": 120, "extra_body": SEED}
    first = client.messages.create(messages=ASKED, tool_choice=choice, **options)
    (call,) = first.content
    assert call.type == "tool_use" and call.id.startswith("toolu_") and first.stop_reason == "tool_use"
    jsonschema.validate(call.input, {tool["name"]: tool["input_schema"] for tool in TOOLS}[call.name])
    assert choice["type"] == "any" or call.name == "add"
    with client.messages.stream(messages=ASKED, tool_choice=choice, **options) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use" and (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "3"}]}
    failed = {"type": "tool_result", "tool_use_id": call.id, "content": "no", "is_error": True}
    turns: list[Any] = [*ASKED, {"role": "assistant", "content": first.content}]
    turns += [{"role": "user", "content": [result, failed, {"type": "text", "text": "And now?"}]}]
    answer = client.messages.create(messages=turns, **options | {"max_tokens": 24})
    function = {"name": call.name, "arguments": json.dumps(call.input)}
    same = [
        *ASKED,
        {"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]},
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
        {"role": "tool", "tool_call_id": call.id, "content": "Error: no"},
        {"role": "user", "content": "And now?"},
    ]
    tools = [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}} for tool in TOOLS
    ]
    tools[0]["function"]["description"] = "Adds."
    assert text_of(answer) == chat_text(server, messages=same, tools=tools, **SEED)


@pytest.mark.parametrize("change", [{}, {"system": "Be brief."}, {"tools": TOOLS}, {"tool_choice": {"type": "none"}}])
def test_tokens_are_counted_as_they_are_read(server: Running, change: dict[str, Any]) -> None:
    client = server.anthropic()
    counted = client.messages.count_tokens(model=NAME, messages=ASKED, **change).input_tokens
    assert counted == client.messages.create(model=NAME, messages=ASKED, max_tokens=1, **change).usage.input_tokens
    assert counted == len(server.model.encode(ASKED)) or change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: 0; at least 1"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]: a block of the type 'image'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "x", "input": {}}]}]},
            "messages[0]: tool_use belongs to the assistant",
        ),
        ({"messages": [{"role": "user", "content": "x " * 600}]}, "messages: "),
        ({"temperature": 1.5}, "temperature: "),
        ({"top_p": 2}, "top_p: "),
        ({"top_k": -2}, "top_k: "),
        ({"seed": 2**64}, "seed: "),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences: "),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].function.name: "),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema: 0 given; it is required"),
        ({"tool_choice": {"type": "tool", "name": "other"}}, "tool_choice: other is not among the 0"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format: json_schema belongs"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "output_config.format: "),
        ({"logprobs": True}, "logprobs: unknown here"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(server: Running, change: dict[str, Any], message: str) -> None:
    response = server.post(PATH, BODY | change)
    assert response.status_code == 400
    error = told(response)
    assert error["type"] == "invalid_request_error" and error["message"].startswith(message)


def test_fields_that_ask_for_nothing_are_taken(server: Running) -> None:
    neutral = {
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto",
        "metadata": {"user_id": None}, "stop_sequences": [],
        "output_config": {"effort": "high", "format": None}, "cache_control": {"type": "ephemeral"}, "tools": [],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "system": [], "stream": False,
    }  # fmt: skip
    assert server.post(PATH, BODY | neutral, headers={"anthropic-version": "2023-06-01"}).status_code == 200


def test_the_client_raises_its_own_errors(server: Running) -> None:
    with pytest.raises(anthropic.BadRequestError, match="messages: prompt is too long: "):
        server.anthropic().messages.create(model=NAME, messages=[{"role": "user", "content": "x " * 600}], max_tokens=9)
    with pytest.raises(anthropic.NotFoundError, match="'claude' is not here") as caught:
        server.anthropic().messages.create(model="claude", messages=ASKED, max_tokens=2)
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]
    assert told(server.get(f"{PATH}/batches"))["type"] == "not_found_error"
    assert server.get(PATH).status_code == 405


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"max_tokens": NaN}', b'{"model": "\\ud800"}', b"[" * 100_000]
)
def test_bodies_that_are_no_requests_are_refused(server: Running, content: bytes) -> None:
    for path in (PATH, COUNT):
        response = httpx.post(server.url + path, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400 and told(response)["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def guarded(package: Path) -> Iterator[Running]:
    with running(package, api_key="correct-horse", max_body_bytes=2000, max_sequences=1, max_queue=0) as found:
        yield found
        found.wait_until_idle()


def test_the_key_may_come_in_either_header(guarded: Running) -> None:
    for headers in ({"x-api-key": "correct-horse"}, {"Authorization": "Bearer correct-horse", "x-api-key": ""}):
        assert guarded.post(PATH, BODY, headers=headers).status_code == 200
        assert guarded.get("/v1/models", headers=headers).status_code == 200
    for headers in ({"x-api-key": "wrong"}, {"Authorization": "correct-horse"}, {}):
        response = guarded.post(PATH, BODY, headers=headers)
        assert response.status_code == 401 and told(response)["type"] == "authentication_error"
    assert guarded.anthropic("correct-horse").messages.count_tokens(model=NAME, messages=ASKED).input_tokens
    with pytest.raises(anthropic.AuthenticationError):
        guarded.anthropic("wrong").messages.count_tokens(model=NAME, messages=ASKED)


def test_what_stands_before_the_application_tells_errors_in_the_same_form(guarded: Running, server: Running) -> None:
    large = guarded.post(PATH, BODY | {"system": "x" * 3000}, headers={"x-api-key": "correct-horse"})
    assert large.status_code == 413 and told(large)["type"] == "request_too_large"
    elsewhere = server.post(PATH, BODY, headers={"Host": "evil.example"})
    assert elsewhere.status_code == 421 and told(elsewhere)["type"] == "invalid_request_error"


def test_a_full_queue_is_a_rate_limit(guarded: Running) -> None:
    client = guarded.anthropic("correct-horse")
    guarded.gate.clear()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.messages.create, model=NAME, **BODY)
        wait_for(lambda: guarded.serving.desk.num_open == 1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(model=NAME, **BODY)
        guarded.gate.set()
        assert waiting.result().content
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_an_error_inside_a_stream_is_its_last_event(package: Path) -> None:
    with running(package) as server:
        stream = server.anthropic().messages.create(model=NAME, messages=ASKED, max_tokens=400, stream=True)
        assert next(stream).type == "message_start"
        server.gate.clear()
        server.serving.desk.break_off()
        with pytest.raises(anthropic.APIStatusError, match="shutting down"):
            list(stream)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
block = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "image"])},
    optional=dict.fromkeys(("text", "id", "name", "input", "tool_use_id", "content", "is_error"), json_values),
)
turn = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"])}) | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(block, max_size=3) | st.text(max_size=5)}
)
FIELDS = ("system", "model", "seed", "temperature", "top_p", "top_k", "stop_sequences", "stream", "tools", "metadata",
          "tool_choice", "thinking", "output_config", "cache_control", "max_tokens")  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([PATH, COUNT]),
    turns=st.lists(turn, max_size=3) | st.just(ASKED),
    fields=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
)
def test_whatever_a_field_holds_the_server_does_not_fail(
    server: Running, path: str, turns: list[Any], fields: dict[str, Any]
) -> None:
    response = server.post(path, {"messages": turns} | ({"max_tokens": 2} if path == PATH else {}) | fields)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        told(response)
