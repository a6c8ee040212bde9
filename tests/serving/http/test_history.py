"""What comes back in a second turn, and what clients decorate requests with, in all three dialects."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from http_servers import NAME, Running, chat_package
from http_servers import running as running_server
from pydantic import BaseModel

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO: list[Any] = [{"role": "user", "content": "x"}]
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 4}}, "required": ["q"]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "find", "parameters": PARAMETERS}}
NULL, TEXT = None, {"guided_choice": ["ok"]}
STRICT = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('a late system message') }}{% endif %}
{{- '# ' + m.role + ': ' + m.content + '\\n' }}
{%- for call in m.tool_calls or [] %}{% for name, value in call.function.arguments | items %}
{{- call.function.name + '(' + name + '=' + value | string + ')\\n' }}{% endfor %}{% endfor %}
{%- endfor %}{% if tools %}tools{% endif %}{% if add_generation_prompt %}{{ '# assistant: ' }}{% endif %}"""
ALTERNATING = """{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '# ' + m.role + ': ' + m.content + '\\n' }}
{%- endfor %}{# tools #}{% if add_generation_prompt %}{{ '# assistant: ' }}{% endif %}"""
SPELLED = """{%- for m in messages %}{{ '# ' + m.role + ': ' + m.content + '\\n' }}
{%- for call in m.tool_calls or [] %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- call.function.name + ' ' + call.function.arguments + ' ' + call.id + '\\n' }}{% endfor %}
{%- endfor %}{# tools #}"""
DEAF = """{%- if messages[0].role == 'system' %}{{ '# system: ' + messages[0].content + '\\n' }}{% endif %}
{%- for m in messages if m.role in ('user', 'assistant') %}{{ '# ' + m.role + ': ' + m.content + '\\n' }}{% endfor %}
{#- tools #}{% if add_generation_prompt %}{{ '# assistant: ' }}{% endif %}"""
TEMPLATES = {"deaf": DEAF, "strict": STRICT, "alternating": ALTERNATING, "spelled": SPELLED}


@pytest.fixture(scope="module")
def running(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of the same model with several chat templates, each under the name of its template."""
    folder = tmp_path_factory.mktemp("templates")
    others = {name: chat_package(folder / name, template=template) for name, template in TEMPLATES.items()}
    with running_server(package, ["target"], others=others) as found:
        yield found


def rendered(server: Running, model: str, messages: list[Any], **fields: Any) -> str:
    """What a model reads of messages; or the error that there is."""
    found = server.post("/tokenize", {"model": model, "messages": messages, **fields})
    if found.status_code != 200:
        return str(found.json()["error"]["message"])
    text = server.post("/detokenize", {"model": model, "tokens": found.json()["tokens"]}).json()["content"]
    return str(text)


def turn(arguments: Any, **call: Any) -> list[Any]:
    """A question, a call and what it gave."""
    called = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": arguments}, **call}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12"}]  # fmt: skip


class Word(BaseModel):
    word: Literal["a", "b"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own, of parsed messages
def test_every_answer_of_a_chat_comes_back(running: Running) -> None:
    create = running.client().chat.completions.create
    options: dict[str, Any] = {"model": NAME, "max_tokens": 40, "seed": 1}
    called = create(messages=HELLO, tools=[TOOL], tool_choice="required", **options).choices[0].message
    answers: list[Any] = [create(messages=HELLO, **options).choices[0].message, called]
    parse = running.client().chat.completions.parse
    answers.append(parse(messages=HELLO, response_format=Word, **options).choices[0].message)
    assert isinstance(answers[-1].parsed, Word)
    for answer in answers:
        members = answer.model_dump(warnings=False)
        for back in (answer, members, answer.to_dict(warnings=False), json.loads(json.dumps(members))):
            results = [{"role": "tool", "tool_call_id": call.id, "content": "1"} for call in answer.tool_calls or ()]
            again = create(messages=[*HELLO, back, *results, *HELLO], **options | {"max_tokens": 1})
            assert again.choices[0].finish_reason == "length"


def test_every_answer_of_the_other_dialects_comes_back(running: Running) -> None:
    responses, messages = running.client().responses, running.anthropic().messages
    flat: Any = {"type": "function", "name": "find", "parameters": PARAMETERS}
    for choice in ("required", "none"):
        response = responses.create(
            model=NAME, input=HELLO, tools=[flat], tool_choice=choice, max_output_tokens=40  # type: ignore[arg-type]
        )  # fmt: skip
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "1"}
            for item in response.output
            if item.type == "function_call"
        ]
        assert bool(outputs) == (choice == "required")
        for back in (response.output, [item.model_dump() for item in response.output]):
            responses.create(model=NAME, input=[*HELLO, *back, *outputs, *HELLO], max_output_tokens=1)
    tool: Any = {"name": "find", "input_schema": PARAMETERS}
    for kind in ("any", "none"):
        message = messages.create(model=NAME, messages=HELLO, tools=[tool], tool_choice={"type": kind}, max_tokens=40)  # type: ignore[arg-type, misc]
        results = [
            {"type": "tool_result", "tool_use_id": each.id} for each in message.content if each.type == "tool_use"
        ]
        assert bool(results) == (kind == "any")
        for content in (message.content, message.model_dump()["content"], json.loads(message.to_json())["content"]):
            turns: Any = [*HELLO, {"role": "assistant", "content": content}]
            turns.append({"role": "user", "content": [*results, {"type": "text", "text": "x"}]})
            assert messages.create(model=NAME, messages=turns, tools=[tool], max_tokens=1).usage.output_tokens == 1


CACHE = {"type": "ephemeral"}
ASSISTANTS: list[dict[str, Any]] = [  # as other servers and front ends write them
    {"content": "ok", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": []},
    {"content": "ok", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    {"content": "ok", "id": "1", "timestamp": 1.5, "model": "x", "metadata": {}, "prefix": False, "parsed": {}},
    {"content": None, "reasoning_content": "hm"},
    {"content": None, "refusal": "No."},
    {"content": [{"type": "refusal", "refusal": "No."}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "ok"}]},
    {"content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}]},
    {"content": ""},
    {"content": None},
    {},
    {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"content": None, "tool_calls": [{"type": "custom", "id": "c", "custom": {"name": "f", "input": "x"}}]},
    {"content": None, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {}}}]},
]


@pytest.mark.parametrize("members", ASSISTANTS, ids=lambda members: json.dumps(members)[:50])
def test_assistants_of_other_servers_are_taken(running: Running, members: dict[str, Any]) -> None:
    messages = [*HELLO, {"role": "assistant", **members}, *HELLO]
    response = running.post(CHAT, {"messages": messages, "max_tokens": 1})
    assert response.status_code == 200, response.text


DECORATED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": CACHE}]}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x", "cache_control": CACHE, "id": "m"}]}),
    (CHAT, {"messages": [{"role": "user", "content": ["x", {"type": "input_text", "text": "y"}]}]}),
    (CHAT, {"messages": HELLO, "tools": [{**TOOL, "cache_control": CACHE}], "cache_control": CACHE}),
    (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    (CHAT, {"messages": HELLO, "response_format": {"type": "json_object", "schema": {"const": 1}}, "seed": 1.0}),
    (CHAT, {"messages": HELLO, "metadata": {"a": 1}, "prediction": {"type": "content", "content": "x"}}),
    (CHAT, {"messages": [*turn({}), {"role": "function", "name": "find", "content": "1"}]}),
    *((CHAT, {"messages": HELLO, name: value}) for name, value in {
        "audio": None, "web_search_options": None, "nonsense": None, "reasoning_effort": "medium", "verbosity": "low",
        "ignore_eos": True, "min_tokens": 2, "stop_token_ids": [2], "top_k": -1, "repeat_penalty": 1.1, "n": 1.0,
        "n_predict": 2, "id_slot": -1, "length_penalty": 1.0, "use_beam_search": False, "echo": False, "best_of": 1,
        "keep_alive": "5m", "options": {"num_ctx": 9}, "think": False, "thinking": {"type": "disabled"}, "stop": "",
        "include_stop_str_in_output": False, "priority": 0, "route": "fallback", "max_tokens": -1.0, "functions": [],
        "reasoning": {"effort": "low"}, "enable_thinking": False, "chat_template_kwargs": {"a": [1]}, "provider": {},
    }.items()),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}],
                            "encrypted_content": "x", "status": None}, {"role": "user", "content": "x"}]}),
    (RESPONSES, {"input": [{"type": "web_search_call", "id": "ws_1", "action": {}}, {"role": "user", "content": "x"},
                           {"type": "computer_call_output", "output": {"type": "computer_screenshot"}}]}),
    ("/v1/completions", {"prompt": "x", "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "best_of": 1,
                         "suffix": None, "user": "me", "n": None, "stream": None, "stop": None, "seed": 3}),
    (RESPONSES, {"input": "x", "store": True, "truncation": "disabled", "previous_response_id": None, "reasoning": {},
                 "service_tier": "auto", "include": [], "background": False, "prompt_cache_key": "x",
                 "stream_options": {"include_obfuscation": False}, "parallel_tool_calls": None}),
    (MESSAGES, {"messages": HELLO, "service_tier": "auto", "metadata": {"user_id": None}, "stop_sequences": [],
                "output_config": {"effort": "high", "format": None}, "cache_control": CACHE, "tools": [],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "system": [], "stream": False}),
    (RESPONSES, {"input": "x", "reasoning": {"effort": "high", "summary": "auto"}, "include": ["x.results"],
                 "prompt": None, "conversation": None, "max_tool_calls": 3, "text": {"verbosity": "low"}}),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result",
         "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "x"}]},
        {"type": "text", "text": "ok", "citations": None, "cache_control": CACHE}]}, *HELLO]}),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": CACHE}]}],
                "system": [{"type": "text", "text": "s", "cache_control": CACHE}], "container": None, "speed": "fast",
                "tools": [{"name": "f", "input_schema": {}, "cache_control": CACHE, "input_examples": []}],
                "thinking": {"type": "enabled", "budget_tokens": 1024}, "mcp_servers": [], "top_k": -1}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), DECORATED, ids=lambda value: str(value)[-40:])
def test_decoration_and_what_asks_for_nothing_are_taken(running: Running, path: str, body: dict[str, Any]) -> None:
    most = {} if "max_tokens" in body or "n_predict" in body else {"max_tokens": 3}
    most = {"max_output_tokens": 3} if path == RESPONSES else most
    response = running.post(path, {**most, **body})
    assert response.status_code == 200, response.text


def test_tools_of_other_kinds_are_left_out_and_told(running: Running) -> None:
    ask = {"max_tokens": 2, "seed": 1}
    chat = running.post(
        CHAT, {"messages": HELLO, "tools": [TOOL, {"type": "web_search", "web_search": {}}], **ask}
    ).json()
    assert chat["mxconv"]["notes"] == [
        "tools[1]: a tool of the type 'web_search' is left out; functions alone are called"
    ]
    assert chat["usage"] == running.post(CHAT, {"messages": HELLO, "tools": [TOOL], **ask}).json()["usage"]
    response = running.client().responses.create(
        model=NAME, input="x", tools=[{"type": "web_search"}], max_output_tokens=2
    )  # fmt: skip
    assert "'web_search' is left out" in response.to_dict()["mxconv"]["notes"][0]  # type: ignore[index]
    tools: Any = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]
    message = running.anthropic().messages.create(model=NAME, messages=HELLO, tools=tools, max_tokens=2)
    assert "'web_search_20250305' is left out" in message.to_dict()["mxconv"]["notes"][0]
    stream = running.client().chat.completions.create(
        model=NAME, messages=HELLO, tools=tools, stream=True, max_tokens=2
    )
    assert "notes" in next(iter(stream)).to_dict()["mxconv"]  # type: ignore[operator]


def test_more_tokens_than_there_is_room_for_are_clamped_and_told(running: Running) -> None:
    num_prompt = running.post("/tokenize", {"messages": HELLO}).json()["count"]
    most = running.model.loaded.config.max_position_embeddings + 1 - num_prompt
    form = {"format": {"type": "json_schema", "schema": {"const": 1}}}
    for path, body in (
        (CHAT, {"messages": HELLO, "max_tokens": 10**9, **TEXT}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 32_000, "output_config": form}),
        (RESPONSES, {"input": "x", "max_output_tokens": 32_000, "text": form}),
    ):
        (note,) = running.post(path, body).json()["mxconv"]["notes"]
        assert f"at most {most} are given after {num_prompt} tokens of a prompt" in note
    for value in (-1, None):
        assert "notes" not in running.post(CHAT, {"messages": HELLO, "max_tokens": value, **TEXT}).json()["mxconv"]
    long = running.post("/v1/completions", {"prompt": "x", "max_tokens": -1, "temperature": 0}).json()
    assert long["usage"]["completion_tokens"] > 16


@pytest.mark.parametrize("written", ["", " ", "null", "{}", None, {}, '"{}"'])
def test_a_call_without_arguments_has_an_empty_object(running: Running, written: Any) -> None:
    assert rendered(running, "spelled", turn(written)).count("find {} ") == 1
    assert "find(" not in rendered(running, "strict", turn(written))


def test_arguments_are_what_the_template_takes(running: Running) -> None:
    for written in ('{"q": "é"}', {"q": "é"}, json.dumps('{"q": "é"}')):
        assert "find(q=é)" in rendered(running, "strict", turn(written))
        assert 'find {"q": "é"} ' in rendered(running, "spelled", turn(written))
    for bad in ('"Rome"', "[1]", '{"q": '):
        found = rendered(running, "strict", turn(bad))
        assert (
            found.startswith("messages: the model's chat template: cannot render 3 messages") and "arguments" in found
        )
    ids = [
        line.split()[-1] for line in rendered(running, "spelled", turn("{}", id=None)).splitlines() if "find" in line
    ]
    assert len(ids[0]) == 9


S, U, A = ({"role": role, "content": f"{role[0]}!"} for role in ("system", "user", "assistant"))
LATE = {"role": "system", "content": "late"}


@pytest.mark.parametrize(
    ("model", "messages", "text"),
    [
        ("strict", [S, U], "# system: s!\n# user: u!\n# assistant: "),
        ("strict", [S, S, U], "# system: s!\n\ns!\n# user: u!\n# assistant: "),
        ("strict", [S, {"role": "developer", "content": "d"}, U], "# system: s!\n\nd\n# user: u!\n# assistant: "),
        ("strict", [U, A, S, U], "# system: s!\n# user: u!\n# assistant: a!\n# user: u!\n# assistant: "),
        ("strict", [U, S], "# system: s!\n# user: u!\n# assistant: "),
        ("alternating", [U, A, U], "# user: u!\n# assistant: a!\n# user: u!\n# assistant: "),
        ("alternating", [U, U], "# user: u!\n\nu!\n# assistant: "),
        ("alternating", [S, U], "# user: s!\n\nu!\n# assistant: "),
        ("alternating", [S, U, A, A, S, U], "# user: s!\n\nu!\n# assistant: a!\n\na!\n# user: s!\n\nu!\n# assistant: "),
        ("deaf", [S, U, A, LATE, U], "# system: s!\n\nlate\n# user: u!\n# assistant: a!\n# user: u!\n# assistant: "),
        ("alternating", [S], "messages: the model's chat template: cannot render 1 messages (roles must alternate)"),
    ],
)
def test_templates_get_what_they_can_render(running: Running, model: str, messages: list[Any], text: str) -> None:
    found = rendered(running, model, messages)
    assert found == text or (text.startswith("messages") and found.startswith(text))
    assert "/" not in found and "--" not in found


def test_the_last_message_of_an_assistant_is_continued(running: Running) -> None:
    begun = [U, {"role": "assistant", "content": "The capital is "}]
    assert rendered(running, "strict", begun) == "# user: u!\n# assistant: The capital is "
    assert rendered(running, "strict", begun, add_generation_prompt=False).endswith("is \n")
    assert rendered(running, "strict", begun, continue_final_message=False).endswith("is \n# assistant: ")
    ask = {"model": "strict", "max_tokens": 5, "temperature": 0}
    tokens = running.post("/tokenize", {"content": "# user: u!\n# assistant: The capital is "}).json()["tokens"]
    prompt = {"prompt": tokens, **ask}
    text = running.post("/v1/completions", prompt).json()["choices"][0]["text"]
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        answer = running.post(CHAT, {"messages": begun, **ask, **more}).json()["choices"][0]["message"]["content"]
        assert answer == text
    assert running.post(MESSAGES, {"messages": begun, **ask}).json()["content"][0]["text"] == text
    response = running.post(RESPONSES, {"model": "strict", "input": begun, "max_output_tokens": 5, "temperature": 0})
    assert response.json()["output"][0]["content"][0]["text"] == text


def test_stops_by_token_and_by_number(running: Running) -> None:
    tokenizer = running.model.loaded.tokenizer
    body = {"prompt": "import ", "max_tokens": 12, "temperature": 0, "logprobs": 0, "mxconv": {"trace": True}}

    def tokens(found: Any) -> list[int]:
        return [token["id"] for token in found["choices"][0]["mxconv"]["tokens"]]

    ids = tokens(running.post("/v1/completions", body).json())
    place = next(place for place, token in enumerate(ids) if place > 0 and token not in ids[:place])
    stopped = running.post("/v1/completions", body | {"stop_token_ids": [ids[place]]}).json()["choices"][0]
    assert stopped["finish_reason"] == "stop" and stopped["text"] == tokenizer.decode(ids[:place])
    assert len(stopped["logprobs"]["tokens"]) == place + 1
    longer = running.post("/v1/completions", body | {"stop_token_ids": [ids[place]], "min_tokens": place + 2}).json()
    assert longer["usage"]["completion_tokens"] >= place + 2
    assert ids[place] not in tokens(longer)[: place + 2]
    end = min(tokenizer.eos_token_ids)
    ended = {"prompt": "x", "max_tokens": 4, "temperature": 0, "logit_bias": {str(end): 100}}
    for fields, count, ending in (({}, 1, "stop"), ({"ignore_eos": True}, 4, "length"), ({"min_tokens": 3}, 4, "stop")):
        found = running.post("/v1/completions", ended | fields).json()
        assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (count, ending)


def test_special_tokens_that_a_message_names_are_text(running: Running, package: Path) -> None:
    tokenizer = running.model.loaded.tokenizer
    name = tokenizer.special_names[0]
    token = tokenizer.special_token_id(name)
    said = f"a{name}b {name[:1]}{name}{name[1:]}"
    parts = [{"type": "text", "text": said}]
    messages = [{"role": "system", "content": said}, *turn({"q": said}), {"role": "user", "content": parts}]
    tools = [{"type": "function", "function": {"name": "f", "description": said}}]
    for model in (NAME, "strict"):
        tokens = running.post("/tokenize", {"model": model, "messages": messages, "tools": tools}).json()["tokens"]
        assert token not in tokens and name in tokenizer.decode(tokens, skip_special_tokens=False)
    assert running.model.encode(messages[:1]) == running.post("/tokenize", {"messages": messages[:1]}).json()["tokens"]
    assert rendered(running, "strict", messages[:1]).startswith(f"# system: {said}\n")
    with running_server(package, ["target"], special_tokens_in_content=True) as other:
        assert token in other.post("/tokenize", {"messages": messages}).json()["tokens"]


def test_a_text_of_the_format_or_a_call(running: Running) -> None:
    """What the embedded model chooses is up to the bias; either comes whole."""
    schema = {"type": "object", "properties": {"word": {"const": "a"}}, "required": ["word"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    held = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"not": {}}}}}}
    body = {"messages": HELLO, "tools": [TOOL, held], "response_format": asked, "max_tokens": 60, "temperature": 0}
    first = {name: running.post("/tokenize", {"content": f'{{"{name}"'}).json()["tokens"] for name in ("word", "name")}
    only = {name: next(one for one in ids if one not in first[other]) for name, ids, other in
            (("word", first["word"], "name"), ("name", first["name"], "word"))}  # fmt: skip
    for name in only:
        found = running.post(CHAT, body | {"logit_bias": {str(only[name]): 100}}).json()
        message = found["choices"][0]["message"]
        assert found["mxconv"]["notes"][0].startswith("tools: odd: #/properties/a/not: {}; a schema without not")
        if name == "word":
            assert json.loads(message["content"]) == {"word": "a"} and "tool_calls" not in message
        else:
            assert message["content"] is None and message["tool_calls"][0]["function"]["name"] == "find"
    for path, more in (
        (CHAT, {**body, "tools": [TOOL], "tool_choice": "required"}),
        (RESPONSES, {"input": "x", "max_output_tokens": 60, "tool_choice": "required",
                     "tools": [{"type": "function", **TOOL["function"]}],
                     "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}),
        (MESSAGES, {"messages": HELLO, "max_tokens": 60, "tool_choice": {"type": "any"},
                    "tools": [{"name": "find", "input_schema": PARAMETERS}],
                    "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    ):  # fmt: skip
        found = running.post(path, more).json()
        assert "find" in json.dumps(found) and "not held, since a call is demanded" in found["mxconv"]["notes"][0]


def test_formats_that_annotate_are_told(running: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "binary", "maxLength": 3}}}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = running.post(CHAT, {"messages": HELLO, "response_format": asked, "max_tokens": 40}).json()
    place = "response_format: #/properties/a/format: 'binary' annotates values; no text is checked by it"
    assert found["mxconv"]["notes"] == [place]
