"""/v1/responses through OpenAI's own client: what a chat says, as a list of items."""

import json
from typing import Any

import jsonschema
import pytest
from http_servers import EMPTY, NAME, NUMBERS, Running
from openai.types.responses import Response

ASKED = "Which module?"
MESSAGES = [{"role": "user", "content": ASKED}]
SEED = {"seed": 9}
OPTIONS: dict[str, Any] = {"model": NAME, "max_output_tokens": 24, "extra_body": SEED}
TOOLS: list[Any] = [
    {"type": "function", "name": "add", "description": "Adds.", "parameters": NUMBERS, "strict": True},
    {"type": "function", "name": "get_time", "parameters": EMPTY, "strict": None},
]
OF_CHATS = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBERS}},
    {"type": "function", "function": {"name": "get_time", "parameters": EMPTY}},
]
JSON: Any = {"format": {"type": "json_schema", "name": "numbers", "schema": NUMBERS, "strict": True}}


def chat(server: Running, **body: Any) -> Any:
    """What the same request gets at /v1/chat/completions."""
    return server.post("/v1/chat/completions", {"max_tokens": 24} | SEED | body).json()["choices"][0]


def without_names(response: Any) -> Any:
    """All but the random ids and the time."""
    found = json.loads(response.model_dump_json(exclude={"id", "created_at"}))
    for item in found["output"]:
        del item["id"]
        item.pop("call_id", None)
    return found


def test_a_response_is_what_a_chat_says(server: Running) -> None:
    client = server.client()
    response = client.responses.create(input=ASKED, instructions="Be brief.", metadata={"a": "b"}, **OPTIONS)
    system = {"role": "system", "content": "Be brief."}
    assert response.output_text == chat(server, messages=[system, *MESSAGES])["message"]["content"]
    Response.model_validate(response.model_dump(), strict=False)  # the client itself does not
    assert response.id.startswith("resp_") and response.object == "response" and response.model == NAME
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens" and response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert response.instructions == "Be brief." and response.metadata == {"a": "b"}
    assert response.to_dict()["store"] is False
    usage = response.usage
    assert usage is not None and usage.output_tokens == 24
    assert usage.input_tokens == len(server.model.encode([system, *MESSAGES]))
    assert usage.total_tokens == usage.input_tokens + 24


def test_items_are_the_messages_of_a_chat(server: Running) -> None:
    first = server.client().responses.create(input=ASKED, **OPTIONS)
    items: list[Any] = [{"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}]
    items += [{"role": "user", "content": ASKED}, *first.output, {"type": "message", "role": "user", "content": "So?"}]
    response = server.client().responses.create(input=items, store=False, truncation="disabled", **OPTIONS)
    same = [
        {"role": "system", "content": "Be brief."},
        *MESSAGES,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "So?"},
    ]
    assert response.output_text == chat(server, messages=same)["message"]["content"]


def test_a_stream_adds_up_to_the_response(server: Running) -> None:
    options = {**OPTIONS, "max_output_tokens": 80, "text": JSON, "input": ASKED}
    whole = server.client().responses.create(**options)
    assert whole.status == "completed" and whole.incomplete_details is None
    jsonschema.validate(json.loads(whole.output_text), NUMBERS)
    with server.client().responses.stream(**options) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    assert deltas == streamed.output_text == whole.output_text
    given = json.loads(streamed.model_dump_json(exclude={"id", "created_at"}))
    for item in given["output"]:
        del item["id"]
        item["content"][0].pop("parsed")
    assert given == without_names(whole)


def test_the_events_of_a_stream_are_numbered_and_in_order(server: Running) -> None:
    stream = server.client().responses.create(input=ASKED, stream=True, **OPTIONS)
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    names = [event.type.removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    whole = server.client().responses.create(input=ASKED, **OPTIONS)
    assert without_names(events[-1].response) == without_names(whole)  # type: ignore[union-attr]


def test_logprobs_are_those_of_a_chat(server: Running) -> None:
    include: Any = ["message.output_text.logprobs"]
    options: dict[str, Any] = {"input": ASKED, "include": include, "top_logprobs": 2, **OPTIONS}
    part = server.client().responses.create(**options).to_dict()["output"][0]["content"][0]  # type: ignore[index]
    expected = chat(server, messages=MESSAGES, logprobs=True, top_logprobs=2)["logprobs"]["content"]
    assert part["logprobs"] == expected
    deltas = server.client().responses.create(stream=True, **options)
    sent = [one for event in deltas if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.to_dict() for one in sent] == expected


def test_logprobs_of_tokens_that_are_a_part_of_a_character_come_with_it(server: Running) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"const": "né👧é"}}}
    options: dict[str, Any] = {"input": ASKED, "text": text, "top_logprobs": 1, **OPTIONS, "max_output_tokens": 60}
    whole = server.client().responses.create(**options).to_dict()["output"][0]["content"][0]  # type: ignore[index]
    assert json.loads(whole["text"]) == "né👧é"  # type: ignore[index]
    stream = server.client().responses.create(stream=True, **options)
    deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == whole["text"]  # type: ignore[index]
    sent = [one.to_dict() for event in deltas for one in event.logprobs]
    assert sent == whole["logprobs"]  # type: ignore[index]
    of_chat = {"type": "json_schema", "json_schema": {"schema": {"const": "né👧é"}}}
    entries = chat(server, messages=MESSAGES, response_format=of_chat, logprobs=True, max_tokens=60)["logprobs"]
    *expected, end = [entry["token"] for entry in entries["content"]]
    assert [one["token"] for one in sent] == expected and end not in whole["text"]  # type: ignore[index]
    assert len(expected) > len(whole["text"])  # type: ignore[index]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_demanded_call_is_made_and_a_conversation_goes_on_with_its_result(server: Running, choice: Any) -> None:
    client = server.client()
    options: dict[str, Any] = OPTIONS | {"max_output_tokens": 120, "tools": TOOLS}
    first = client.responses.create(input=ASKED, tool_choice=choice, parallel_tool_calls=False, **options)
    (call,) = first.output
    assert call.type == "function_call" and call.call_id.startswith("call_") and call.status == "completed"
    jsonschema.validate(json.loads(call.arguments), {"add": NUMBERS, "get_time": EMPTY}[call.name])
    assert choice == "required" or call.name == "add"
    of_chat = choice if choice == "required" else {"type": "function", "function": {"name": "add"}}
    (same,) = chat(server, messages=MESSAGES, tools=OF_CHATS, tool_choice=of_chat, max_tokens=120)["message"][
        "tool_calls"
    ]
    assert same["function"] == {"name": call.name, "arguments": call.arguments}
    with client.responses.stream(input=ASKED, tool_choice=choice, parallel_tool_calls=False, **options) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call" and (streamed.name, streamed.arguments) == (call.name, call.arguments)
    items: list[Any] = [{"role": "user", "content": ASKED}, call]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
    answer = client.responses.create(input=items, **options | {"max_output_tokens": 24})
    written = {"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [written]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "3"},
    ]
    assert answer.output_text == chat(server, messages=messages, tools=OF_CHATS)["message"]["content"]
