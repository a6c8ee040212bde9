"""Conversations in the style of today's families, rendered as apply_chat_template of transformers renders them.

The templates are written here, with the features of Jinja that those of the families use.
"""
# ruff: noqa: E501  lines as long as those of the templates that they are like

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from mxconv.errors import ModelError
from mxconv.text.chat import ChatTemplate

QWEN_3 = """\
{#- macros with output, a loop backwards, thoughts by either way, neighbours in a loop -#}
{%- macro plain(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content %}
        {%- for part in content %}{{- part.text if 'text' in part else '<|picture|>' }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- macro wrapped(role, body) %}{{ '<|im_start|>' + role + '\\n' + body + '<|im_end|>\\n' }}{% endmacro %}
{%- set at = namespace(question=-1) %}
{%- for m in messages[::-1] %}
    {%- if at.question < 0 and m.role == 'user' and not plain(m.content).startswith('<tool_response>') %}
        {%- set at.question = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- wrapped('system', 'Tools:\\n' + tools | map('tojson') | join('\\n')) }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' }}
        {{- '\\n<tool_response>\\n' + plain(m.content) + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
        {%- continue %}
    {%- endif %}
    {%- set body = plain(m.content) | trim %}
    {%- set thought = m.reasoning_content if m.reasoning_content is string else '' %}
    {%- if not thought and '</think>' in body %}
        {%- set thought = body.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set body = body.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if m.role == 'assistant' and thought and loop.index0 > at.question %}
        {%- set body = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + body %}
    {%- endif %}
    {%- set called %}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n' if body or not loop.first }}{{- '<call ' + call.function.name + '>\\n' }}
            {%- for name, value in call.function.arguments | items %}
                {{- name + '=' + (value if value is string else value | tojson | safe) + '\\n' }}
            {%- endfor %}
        {%- endfor %}
    {%- endset %}
    {{- wrapped(m.role, body + called) }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '<think>\\n') }}
{%- endif %}
"""
GPT_OSS = """\
{#- harmony: macros that call themselves, types of parameters, slices of what is still to come -#}
{%- macro type_of(schema, nullable=false) -%}
    {%- if schema.type == 'array' -%}{{ type_of(schema['items']) ~ '[]' }}
    {%- elif schema.enum -%}{{ '"' ~ schema.enum | join('" | "') ~ '"' }}
    {%- elif schema.oneOf is defined -%}
        {%- for each in schema.oneOf -%}{{ type_of(each) }}{{ ' | ' if not loop.last }}{%- endfor -%}
    {%- else -%}{{ 'number' if schema.type in ('number', 'integer') else schema.type | default('any', true) }}
    {%- endif -%}
    {{- ' | null' if nullable -}}
{%- endmacro -%}
{{- '<|start|>system<|message|>Year: ' ~ strftime_now('%Y') ~ '\\nReasoning: ' ~ (reasoning_effort | default('medium')) ~ '<|end|>' -}}
{%- set turns = messages[1:] if messages[0].role in ['developer', 'system'] else messages -%}
{%- if tools or turns | length < messages | length -%}
    <|start|>developer<|message|>
    {%- if turns | length < messages | length %}{{ '# Instructions\\n\\n' ~ messages[0].content }}{% endif -%}
    {%- for tool in tools or [] %}
        {%- set about = tool.function.parameters %}
        {{- '\\n// ' ~ tool.function.description ~ '\\ntype ' ~ tool.function.name ~ ' = (_: {' }}
        {%- for name, schema in about.properties | dictsort %}
            {{- '\\n' ~ name ~ ('' if name in (about.required or []) else '?') ~ ': ' ~ type_of(schema, schema.nullable) }}
            {%- if schema.default is defined %}{{ ' // ' ~ (schema.default | tojson) }}{% endif %}
        {%- endfor %}
        {{- '\\n}) => any;' }}
    {%- endfor -%}
    <|end|>
{%- endif -%}
{%- set called = namespace(name=none) -%}
{%- for turn in turns -%}
    {%- if turn.role == 'tool' -%}
        {%- if called.name is none %}{{ raise_exception('a result without a call') }}{% endif -%}
        {{- '<|start|>functions.' ~ called.name ~ ' to=assistant<|message|>' ~ (turn.content | tojson) ~ '<|end|>' -}}
    {%- elif turn.tool_calls is defined -%}
        {%- set rest = turns[loop.index:] | selectattr('role', 'equalto', 'assistant') | list -%}
        {%- if turn.thinking and not rest %}{{ '<|channel|>analysis<|message|>' ~ turn.thinking ~ '<|end|>' }}{% endif -%}
        {%- set called.name = turn.tool_calls[0].function.name -%}
        {{- '<|start|>assistant to=' ~ called.name ~ '<|message|>' ~ (turn.tool_calls[0].function.arguments | tojson) ~ '<|call|>' -}}
    {%- else -%}
        {{- '<|start|>' ~ turn.role ~ ('<|channel|>final' if turn.role == 'assistant') ~ '<|message|>' ~ turn.content -}}
        {{- '<|return|>' if loop.last and turn.role == 'assistant' and not add_generation_prompt else '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
BRACKETED = """\
{{ bos_token }}
{% set state = namespace(system='') %}
{% for message in messages %}
    {% if message['role'] == 'system' %}
        {% set state.system = message['content'] %}
        {% continue %}
    {% elif message['role'] == 'user' %}
[INST] {{ state.system }}{{ message['content'] }} [/INST]
    {% else %}
{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}

    {% endif %}
{% endfor %}
{# a comment #}
{% if tools is not none or documents is not none %}tools{% endif %}
{{ pad_token | default('no pad') }}{{ dict(a=1)['a'] }}"""
WRITTEN = """\
{% for message in messages %}{{ message | tojson }}
{{ message | tojson(indent=2) }}{{ message | tojson(sort_keys=true, separators=(',', ':')) }}{{ message.content.split()[-1] }}{{ loop.index0 }}
{% if loop.last %}{% break %}{% endif %}
{% endfor %}{{ strftime_now('%Y') | length }}"""
TEMPLATES = {
    "Qwen 3.5": QWEN_3,
    "gpt-oss": GPT_OSS,
    "bracketed": BRACKETED,
    "written as JSON": WRITTEN,
    "empty": "",
    "unknown names": "{{ unknown }}plain\n\n",
}

_CALL = {
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich <&>", "days": [1, 2], "x": None}},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  Größe <b>'x'</b> & \"y\"?\n🙂 "}],
    "several": [
        {"role": "system", "content": "Be brief. /no_think "},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n 4\n"},
        {"role": "user", "content": "<tool_response>no</tool_response>"},
        {"role": "assistant", "content": "Why?", "reasoning": "hm\n"},
    ],
    "tools": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "I should ask."},
        {"role": "tool", "content": '{"sunny": true}', "name": "weather"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Thanks."},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " What is "}, {"type": "image"}, {"type": "text", "text": "it?"}]}],
    "unknown role": [{"role": "critic", "content": "No."}],
}  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Says how "it" is; ünicode <&>',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Zürich", "Bern"]},
                    "days": {"type": "array", "items": {"type": "integer"}, "default": [1]},
                    "x": {"oneOf": [{"type": "number"}, {"type": "string"}], "nullable": True},
                },
                "required": ["city"],
            },
        },
    },
]
THINKING = {"enable_thinking": False, "reasoning_effort": "high", "keep_past_thinking": True}


@pytest.fixture(scope="module", params=TEMPLATES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatTemplate, Any]:
    """Ours and transformers' of one folder."""
    folder = tmp_path_factory.mktemp("model")
    Backend(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param])
    return ChatTemplate.from_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations_are_rendered_as_by_transformers(pair: tuple[ChatTemplate, Any], conversation: str) -> None:
    ours, theirs = pair
    messages, num_rendered = CONVERSATIONS[conversation], 0
    cases: list[tuple[Any, bool, dict[str, Any]]] = [(None, True, {}), (None, False, THINKING), (TOOLS, True, THINKING)]
    for tools, prompts, variables in cases:
        given = {"tools": tools, "tokenize": False, "add_generation_prompt": prompts, **variables}
        try:
            expected = theirs.apply_chat_template(messages, **given)
        except Exception as error:  # what a template refuses
            with pytest.raises(ModelError, match="cannot render") as caught:
                ours.render(messages, prompts, tools=tools, variables=variables)
            assert str(error) in str(caught.value)
            continue
        assert ours.render(messages, prompts, tools=tools, variables=variables) == expected
        num_rendered += 1
    assert num_rendered == 3 or conversation != "one"  # an oracle that refuses everything would compare nothing


@pytest.mark.parametrize(
    ("tools", "variables", "message"),
    [
        ([{"function": Path("x")}], {}, r"tools: holds a \w*Path; what JSON can say is required"),
        ([{1: 2}], {}, r"tools: holds a dict; what JSON can say is required"),
        (None, {"enable_thinking": object()}, r"variables of the chat template: holds a object; what JSON"),
    ],
)
def test_a_template_sees_json_alone(tools: Any, variables: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ChatTemplate("x", "it").render(CONVERSATIONS["one"], tools=tools, variables=variables)


def test_deep_messages_are_refused() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ModelError, match=r"message 1: nested more than 32 deep; less is required\. Flatten it"):
        ChatTemplate("x", "it").render([{"role": "user", "content": "x", "more": deep}])


def test_namespaces_hold_no_hidden_names() -> None:
    with pytest.raises(ModelError, match="names must not begin with an underscore"):
        ChatTemplate("{% set ns = namespace(_a=1) %}", "it").render(CONVERSATIONS["one"])
    with pytest.raises(ModelError, match="names must not begin with an underscore"):
        ChatTemplate("{% set ns = namespace() %}{% set ns.__a = 1 %}", "it").render(CONVERSATIONS["one"])
    assert ChatTemplate("{{ namespace(self=3).self }}", "it").render(CONVERSATIONS["one"]) == "3"
