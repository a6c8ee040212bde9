"""Functions that a model may call, and structured text, through OpenAI's own client: answers fit what was asked for."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from http_servers import EMPTY, NAME, NUMBERS, TEMPLATE, Running, running
from packages import quantize
from trained_levels import TRAINED

from mxconv.text.constraint import Constraint
from mxconv.text.harmony import HARMONY
from mxconv.text.tool_calls import ToolForm
from mxconv.text.tool_forms import FORMS, GEMMA

MESSAGES: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBERS, "strict": True}},
    {"type": "function", "function": {"name": "get_time", "parameters": EMPTY}},
]
SCHEMAS = {"add": NUMBERS, "get_time": EMPTY}


def check(calls: Any, finish_reason: str | None, most: int = 1) -> None:
    assert finish_reason == "tool_calls" and 1 <= len(calls) <= most
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("choice", ["required", "add", "get_time"])
def test_a_demanded_call_fits_its_schema(server: Running, choice: str, seed: int) -> None:
    wanted: Any = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    options: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "tools": TOOLS, "tool_choice": wanted, "seed": seed}
    whole = server.client().chat.completions.create(max_tokens=120, **options).choices[0]
    assert whole.message.content is None
    check(whole.message.tool_calls, whole.finish_reason)
    assert choice == "required" or whole.message.tool_calls[0].function.name == choice  # type: ignore[index, union-attr]
    with server.client().chat.completions.stream(max_tokens=120, **options) as stream:
        streamed = stream.get_final_completion().choices[0]
    check(streamed.message.tool_calls, streamed.finish_reason)
    named = [(call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls or []]  # type: ignore[union-attr]
    assert named == [
        (call.function.name, json.loads(call.function.arguments)) for call in streamed.message.tool_calls or []
    ]


def test_where_it_need_not_call_it_is_told_of_functions_and_writes_text(server: Running) -> None:
    """The embedded model calls nothing by itself."""
    options: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    create = server.client().chat.completions.create
    offered, alone, unasked = (
        create(**options, **more) for more in ({"tools": TOOLS}, {}, {"tools": TOOLS, "tool_choice": "none"})
    )
    assert offered.choices[0].message.tool_calls is None and offered.choices[0].message.content
    stream = create(tools=TOOLS, tool_choice="auto", stream=True, **options)
    text = "".join(piece.choices[0].delta.content or "" for piece in stream)
    assert text == offered.choices[0].message.content
    assert unasked.choices[0].message == alone.choices[0].message
    assert unasked.usage == alone.usage and offered.usage.prompt_tokens > alone.usage.prompt_tokens


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_the_agent_calls_tools_through_each_dialect(
    server: Running, dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    import agent

    monkeypatch.setattr(agent, "CHOICES", ("required",))  # the model has 512 positions, of which tools take most
    monkeypatch.setattr(agent, "MAX_TOKENS", 100)
    monkeypatch.chdir(tmp_path)
    getattr(agent, f"through_{dialect}")(server.url, NAME, "Which files?")
    assert " -> " in capsys.readouterr().out


def package_with_markers(folder: Path, form: ToolForm) -> tuple[Path, dict[str, int]]:
    """A package whose template teaches a form, and whose last tokens are its markers: their names and ids."""
    shutil.copytree(TRAINED, folder / "source")
    marker = next(marker for marker, each in FORMS.items() if each is form)
    (folder / "source" / "chat_template.jinja").write_text(f"{{# {marker} tools #}}{TEMPLATE}")
    path = folder / "source" / "tokenizer.json"
    members = json.loads(path.read_text())
    vocabulary, count = members["model"]["vocab"], len(form.markers)
    ids = dict(zip(form.markers, range(len(vocabulary) - count, len(vocabulary)), strict=True))
    members["model"]["vocab"] = {text: token for text, token in vocabulary.items() if token < min(ids.values())}
    members["model"]["merges"] = members["model"]["merges"][:-count]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    members["added_tokens"] += [{"id": token, "content": name, "special": True, **flags} for name, token in ids.items()]
    path.write_text(json.dumps(members))
    quantize(folder / "source", folder / NAME)
    return folder / NAME, ids


@pytest.mark.parametrize("form", [HARMONY, GEMMA], ids=["harmony", "gemma"])
def test_markers_that_are_special_tokens_are_demanded_and_read(form: ToolForm, tmp_path: Path) -> None:
    package, ids = package_with_markers(tmp_path, form)
    options: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "max_tokens": 120, "temperature": 1}
    demanded: dict[str, Any] = options | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    with running(package) as server:
        create = server.client().chat.completions.create
        for seed in range(4):
            whole = create(seed=seed, **demanded).choices[0]
            assert whole.message.content is None
            check(whole.message.tool_calls, whole.finish_reason)
            with server.client().chat.completions.stream(seed=seed, **demanded) as stream:
                streamed = stream.get_final_completion().choices[0]
            check(streamed.message.tool_calls, streamed.finish_reason)
        if form is HARMONY:
            start, channel, message, end = (
                f"<[{ids[f'<|{each}|>']}]>" for each in ("start", "channel", "message", "end")
            )
            thought = f'{channel} "analysis" {message} "hm" {end} {start} "assistant" {channel} "final" {message} "ok"'
            asked: dict[str, Any] = {**options, "extra_body": {"guided_grammar": f"start: {thought}"}}
            answer = create(**asked).choices[0]
            assert answer.message.content == "ok" and answer.message.reasoning_content == "hm"  # type: ignore[attr-defined]
            deltas = [piece.choices[0].delta for piece in create(stream=True, **asked)]
            assert "".join(delta.content or "" for delta in deltas) == "ok"
            assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "hm"
            back = {"role": "assistant", "content": "ok", "reasoning_content": "hm"}
            assert create(**{**options, "messages": [*MESSAGES, back, *MESSAGES]}).choices[0].finish_reason


SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9}, "tags": {"enum": ["old", "new"]}},
    "required": ["id", "tags"],
    "additionalProperties": False,
}
OF_OPENAI = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
CONSTRAINTS: dict[str, tuple[dict[str, Any], Constraint]] = {
    "response_format": ({"response_format": OF_OPENAI}, Constraint("json_schema", json.dumps(SCHEMA))),
    "guided_json": ({"guided_json": SCHEMA}, Constraint("json_schema", json.dumps(SCHEMA))),
    "guided_json, a text": ({"guided_json": json.dumps(SCHEMA)}, Constraint("json_schema", json.dumps(SCHEMA))),
    "json_schema": ({"json_schema": SCHEMA}, Constraint("json_schema", json.dumps(SCHEMA))),
    "structured_outputs": ({"structured_outputs": {"json": SCHEMA}}, Constraint("json_schema", json.dumps(SCHEMA))),
    "structured_outputs, regex": ({"structured_outputs": {"regex": "[ab]{2}"}}, Constraint("regex", "[ab]{2}")),
    "guided_regex": ({"guided_regex": "[a-c]{3,5}!"}, Constraint("regex", "[a-c]{3,5}!")),
    "guided_grammar": ({"guided_grammar": 'start: "ab" | "cd"'}, Constraint("grammar", 'start: "ab" | "cd"')),
    "grammar": ({"grammar": 'root ::= "ab" | "cd"'}, Constraint("grammar", 'root ::= "ab" | "cd"')),
    "guided_choice": ({"guided_choice": ['"yes"', "né\n"]}, Constraint("choice", json.dumps(['"yes"', "né\n"]))),
}


@pytest.mark.parametrize("how", CONSTRAINTS)
def test_an_answer_is_what_generate_writes_under_the_constraint(server: Running, how: str) -> None:
    fields, constraint = CONSTRAINTS[how]
    for temperature in (0.0, 0.9):
        expected = server.model.generate(
            MESSAGES, max_new_tokens=60, constraint=constraint, temperature=temperature, seed=4, drafts=[]
        )
        body = {"messages": MESSAGES, "max_tokens": 60, "temperature": temperature, "seed": 4, **fields}
        found = server.post("/v1/chat/completions", body).json()["choices"][0]
        assert found["message"]["content"] == expected.text and found["finish_reason"] == "stop"
    fits = {
        "json_schema": lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None,
        "regex": lambda text: bool(re.fullmatch(constraint.text, text)),
        "grammar": lambda text: text in ("ab", "cd"),
        "choice": lambda text: text in json.loads(constraint.text),
    }
    assert fits[constraint.kind](expected.text)


def test_an_answer_that_cannot_go_on_is_the_requests_fault(server: Running) -> None:
    """A definition that is nothing but itself has no text, which shows when an answer comes to it."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    schema["$defs"] = {"x": {"$ref": "#/$defs/x"}}
    response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 20, "guided_json": schema})
    assert response.status_code == 400 and "json_schema: " in response.json()["error"]["message"]
