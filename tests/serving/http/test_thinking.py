"""Variables of chat templates, and thoughts taken out of answers, in all three dialects."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import run_forked
from http_servers import Running, chat_package, serve
from http_servers import running as running_server

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO: list[Any] = [{"role": "user", "content": "x"}]
BODY = """{%- for m in messages %}{{ '# ' + m.role + ': ' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}
{{- m.content.split('</think>')[-1] + '\\n' }}{% endfor %}{# tools #}
{%- if add_generation_prompt %}{{ '# assistant: ' }}"""
CLOSED = "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}"
EFFORT = "{% if reasoning_effort %}{{ '[' + reasoning_effort + ']' }}{% endif %}"
SELF = f"{BODY}{CLOSED}{{% endif %}}{EFFORT}{{% endif %}}"  # the model begins its thought, as Qwen3's template has it
OPEN = f"{BODY}{CLOSED}{{% else %}}{{{{ '<think>\\n' }}}}{{% endif %}}{{% endif %}}"  # the prompt does, as Qwen3.5's
SHARED = Path(os.environ.get("MXCONV_TEST_MODELS", "nowhere")).parent / "cases" / "serving" / "templates"
PUBLIC = sorted(SHARED.glob("qwen*.jinja"))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of one model with several templates; the first is `self`."""
    folder = tmp_path_factory.mktemp("thinking")
    templates = {"self": SELF, "open": OPEN, **{path.stem: path.read_text() for path in PUBLIC}}
    packages = {name: chat_package(folder / name, template=template) for name, template in templates.items()}
    with running_server(packages["self"], ["target"], others=packages) as found:
        yield found


def prompt(server: Running, model: str, **fields: Any) -> str:
    tokens = server.post("/tokenize", {"model": model, "messages": HELLO, **fields}).json()["tokens"]
    return str(server.post("/detokenize", {"model": model, "tokens": tokens}).json()["content"])


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({}, "<think>\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, "<think>\n"),
        ({"enable_thinking": False}, "</think>\n\n"),
        ({"think": False}, "</think>\n\n"),
        ({"think": "high"}, "<think>\n"),
        ({"thinking": {"type": "disabled"}}, "</think>\n\n"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "<think>\n"),
        ({"reasoning": {"enabled": False}}, "</think>\n\n"),
        ({"reasoning": {"effort": "none"}}, "</think>\n\n"),
        ({"reasoning_effort": "none"}, "</think>\n\n"),
        ({"reasoning_effort": "low"}, "<think>\n"),
    ],
)
def test_whether_to_think_is_said_to_the_template(thinking: Running, fields: dict[str, Any], ending: str) -> None:
    for model in ("open", *(path.stem for path in PUBLIC if path.stem == "qwen35")):
        assert prompt(thinking, model, **fields).endswith(ending)
    count = thinking.post("/tokenize", {"model": "open", "messages": HELLO, **fields}).json()["count"]
    usage = thinking.post(CHAT, {"model": "open", "messages": HELLO, "max_tokens": 1, **fields}).json()["usage"]
    assert usage["prompt_tokens"] == count


def test_every_dialect_hands_it_on(thinking: Running) -> None:
    low = prompt(thinking, "self", reasoning_effort="low")
    assert low.endswith("[low]") and "[" not in prompt(thinking, "self", reasoning_effort="none")
    asked = {"model": "self", "messages": HELLO, "reasoning_effort": "low"}
    count = thinking.post("/tokenize", asked).json()["count"]
    for body in ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}):
        answer = thinking.post(RESPONSES, {"model": "self", "input": HELLO, "max_output_tokens": 1, **body}).json()
        assert answer["usage"]["input_tokens"] == count
    anthropic: Any = thinking.anthropic().messages
    effort = anthropic.count_tokens(model="self", messages=HELLO, output_config={"effort": "low"})
    assert effort.input_tokens == count
    off, on = (
        anthropic.count_tokens(model="open", messages=HELLO, thinking={"type": kind}).input_tokens
        for kind in ("disabled", "adaptive")
    )
    assert off > on


WRITTEN = [  # model, what it writes, what it thought, what it says
    ("self", "<think>\nHm, so.\n</think>\n\nHello!", "Hm, so.", "Hello!"),
    ("self", "Hello!", "", "Hello!"),
    ("open", "Hm, so.\n</think>\n\nHello!", "Hm, so.", "Hello!"),
    *((path.stem, f"{'<think>' * (path.stem == 'qwen3')}\nHm.\n</think>\n\nHello", "Hm.", "Hello") for path in PUBLIC),
]


@pytest.mark.parametrize(("model", "written", "thought", "text"), WRITTEN)
def test_a_thought_is_no_content(thinking: Running, model: str, written: str, thought: str, text: str) -> None:
    body: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 60}
    forced = {"guided_choice": [written]}
    create = thinking.client().chat.completions.create
    whole = create(**body, extra_body=forced).choices[0].message
    assert whole.content == text and getattr(whole, "reasoning_content", "") == thought
    deltas = [piece.choices[0].delta for piece in create(stream=True, **body, extra_body=forced)]
    assert "".join(delta.content or "" for delta in deltas) == text
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == thought
    raw = create(**body, extra_body={**forced, "reasoning_format": "none"}).choices[0].message
    assert raw.content == written
    back = [*HELLO, whole.model_dump(), *HELLO]
    assert create(**{**body, "messages": back}, extra_body={"max_tokens": 1}).choices[0].finish_reason == "length"


def test_thoughts_are_blocks_and_items_of_their_own(thinking: Running) -> None:
    """The embedded model never ends a thought that its prompt began: all is thought, streamed and whole."""
    messages = thinking.anthropic().messages
    options: dict[str, Any] = {"model": "open", "messages": HELLO, "max_tokens": 12, "extra_body": {"seed": 3}}
    whole = messages.create(**options)
    (block,) = whole.content
    assert block.type == "thinking" and block.thinking and whole.stop_reason == "max_tokens"
    with messages.stream(**options) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        assert "".join(pieces) == block.thinking == stream.get_final_message().content[0].thinking  # type: ignore[union-attr]
    chat = thinking.post(CHAT, {"model": "open", "messages": HELLO, "max_tokens": 12, "seed": 3}).json()
    assert chat["choices"][0]["message"]["reasoning_content"] == block.thinking
    assert chat["choices"][0]["message"]["content"] == ""
    responses, body = thinking.client().responses, {"model": "open", "input": HELLO, "max_output_tokens": 12}
    response = responses.create(**body, extra_body={"seed": 3})  # type: ignore[call-overload]
    (item,) = response.output
    assert item.type == "reasoning" and item.content[0].text == block.thinking and response.output_text == ""
    with responses.stream(**body, extra_body={"seed": 3}) as events:  # type: ignore[call-overload]
        names = [(event.type, getattr(event, "delta", "")) for event in events]
    assert "".join(delta for name, delta in names if name == "response.reasoning_text.delta") == block.thinking
    turns = [*HELLO, {"role": "assistant", "content": whole.content}, *HELLO]
    assert messages.create(**options | {"messages": turns}).usage.input_tokens > whole.usage.input_tokens
    again = responses.create(**body | {"input": [*HELLO, *response.output, *HELLO]})  # type: ignore[call-overload]
    assert again.usage.input_tokens == messages.create(**options | {"messages": turns}).usage.input_tokens


def test_json_and_demanded_calls_begin_at_once(thinking: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for model in ("self", "open", *(path.stem for path in PUBLIC)):
        body = {"model": model, "messages": HELLO, "max_tokens": 80}
        message = thinking.post(CHAT, {**body, "response_format": asked}).json()["choices"][0]["message"]
        assert json.loads(message["content"]) == {"a": 1} and "reasoning_content" not in message
        called = thinking.post(CHAT, {**body, "tools": [tool], "tool_choice": "required"}).json()["choices"][0]
        assert json.loads(called["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
        chosen = thinking.post(CHAT, {**body, "guided_choice": ["yes"]}).json()["choices"][0]["message"]
        assert chosen["content"] == "yes"


def test_a_thought_of_the_last_message_is_continued(thinking: Running) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "<think>Hm"}]
    body = {"model": "self", "messages": begun, "max_tokens": 60, "guided_choice": [", so.</think>Hello"]}
    message = thinking.post(CHAT, body).json()["choices"][0]["message"]
    assert message["reasoning_content"] == ", so." and message["content"] == "Hello"


@pytest.mark.parametrize("path", PUBLIC or [None], ids=lambda path: path and path.stem)
def test_public_templates_take_long_conversations(thinking: Running, path: Path | None) -> None:
    if path is None:
        pytest.skip("MXCONV_TEST_MODELS is not set, or no templates lie beside it")
    call = {"type": "function", "function": {"name": "f", "arguments": ""}}
    turns = [
        {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, *HELLO,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call], "annotations": []},
        {"role": "tool", "content": [{"type": "text", "text": "1"}]}, {"role": "system", "content": "late"}, *HELLO,
    ]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}]
    response = thinking.post(CHAT, {"model": path.stem, "messages": turns, "tools": tools, "max_tokens": 2})
    assert response.status_code == 200, response.text


def test_the_command_line_hands_variables_on(tmp_path: Path) -> None:
    only = "{% if a is sameas false and b == 'low' %}x{% else %}{{ raise_exception('other variables') }}{% endif %}"
    package = str(chat_package(tmp_path, template=only))
    generate = ("generate", package, "--prompt", "x", "--chat", "--max-new-tokens", "1", "--template-var")
    good = run_forked((*generate, "a=false", "--template-var", "b=low"), os.environ, Path.cwd())
    assert good.returncode == 0, good.stderr
    bad = run_forked((*generate, "a=true"), os.environ, Path.cwd())
    assert bad.returncode == 1 and "other variables" in bad.stderr and "--chat" not in bad.stderr
    none = run_forked((*generate, "a"), os.environ, Path.cwd())
    assert none.returncode == 2 and "--template-var: 'a'; NAME=VALUE is required" in none.stderr
    with serve(Path(package), "--json", "--template-var", "a=false", "--template-var", "b=low") as (_, line):
        body = {"messages": HELLO, "max_tokens": 1}
        assert httpx.post(json.loads(line)["url"] + CHAT, json=body, timeout=60).status_code == 200
