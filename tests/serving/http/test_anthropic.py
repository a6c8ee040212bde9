"""/v1/messages through Anthropic's own client: what a chat says, in Anthropic's form, errors included."""

import json
from typing import Any

import jsonschema
import pytest
from http_servers import NAME, NUMBERS, Running

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASKED: list[Any] = [{"role": "user", "content": "Which module?"}]
BODY: dict[str, Any] = {"messages": ASKED, "max_tokens": 24}
SEED = {"seed": 9}
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
