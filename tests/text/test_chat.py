"""Chat templates, against apply_chat_template of transformers."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from mxconv.checkpoint.folder import companions
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.chat import ChatTemplate
from mxconv.text.chat_templates import MAX_TEMPLATE_BYTES
from mxconv.text.template_sandbox import MAX_OUTPUT_CHARACTERS

MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Größe <b>of</b> 'x' & \"y\"?\n🙂"},
    {"role": "assistant", "content": "  12\n"},
    {"role": "user", "content": "Why?"},
]
MARKED = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
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
TOOLS = """\
{% for message in messages %}{{ message | tojson }}
{{ message | tojson(indent=2) }}{{ message.content.split()[-1] }}{{ loop.index0 }}
{% if loop.last %}{% break %}{% endif %}
{% endfor %}{{ strftime_now('%Y') | length }}"""


def write(folder: Path, template: Any = None, **config: Any) -> Path:
    """A tokenizer folder as transformers reads it."""
    Backend(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, [])).save(str(folder / "tokenizer.json"))
    values: dict[str, Any] = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, **config}
    if template is not None:
        values["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def by_transformers(folder: Path, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("template", [MARKED, BRACKETED, TOOLS, "", "{{ unknown }}plain\n\n"])
def test_conversations_are_rendered_as_by_transformers(tmp_path: Path, template: str) -> None:
    write(tmp_path, template)
    chat = ChatTemplate.from_folder(tmp_path)
    for messages, add_generation_prompt in ((MESSAGES, True), (MESSAGES, False), (MESSAGES[1:2], True)):
        ours = chat.render(messages, add_generation_prompt)
        assert ours == by_transformers(tmp_path, messages, add_generation_prompt)


def test_a_file_of_its_own_comes_first_and_goes_along_when_converted(tmp_path: Path) -> None:
    write(tmp_path, "from the configuration")
    (tmp_path / "chat_template.jinja").write_text(MARKED)
    assert ChatTemplate.from_folder(tmp_path).render(MESSAGES) == by_transformers(tmp_path, MESSAGES, True)
    assert companions(["chat_template.jinja", "tokenizer_config.json", "other.jinja"]) == [
        "chat_template.jinja",
        "tokenizer_config.json",
    ]


def test_special_tokens_may_stand_in_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<a>"}, "eos_token": "<b>"}')
    assert ChatTemplate.from_folder(tmp_path).render(MESSAGES) == "<a><b>"


def test_a_model_without_a_template_is_told_apart(tmp_path: Path) -> None:
    for folder in (tmp_path, write(tmp_path)):
        with pytest.raises(ModelError, match=r"there is no chat template; chat_template.jinja, or .* generate without"):
            ChatTemplate.from_folder(folder)


@pytest.mark.parametrize("template", [3, {"default": 1}, [{"name": "default"}], ["x"], [{"name": 1, "template": "x"}]])
def test_templates_of_other_types_are_refused(tmp_path: Path, template: Any) -> None:
    write(tmp_path, template)
    with pytest.raises(ModelError, match=r"chat_template is .*; a text, or a list of objects with a name and a"):
        ChatTemplate.from_folder(tmp_path)


def test_long_and_binary_templates_are_refused(tmp_path: Path) -> None:
    message = r"1,000,001 bytes long; at most 1,000,000 are read"
    with pytest.raises(ModelError, match=message):
        ChatTemplate.from_folder(write(tmp_path, "x" * (MAX_TEMPLATE_BYTES + 1)))
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(ModelError, match=message):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"abc\xff")
    with pytest.raises(ModelError, match=r"chat_template.jinja: byte 3 is no UTF-8; text is required"):
        ChatTemplate.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.jinja").mkdir()
    (tmp_path / "tokenizer_config.json").write_text("nothing")
    with pytest.raises(CheckpointError, match="a JSON object is required"):
        ChatTemplate.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for", "unexpected"),
        ("{{ messages[9].content }}", "no element 9"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
        ("{{ raise_exception.__globals__['json'] }}", "unsafe"),
        ("{% include 'tokenizer.json' %}", "no loader"),
        ("{{ range(10000000) }}", "OverflowError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_an_error(template: str, reason: str) -> None:
    message = rf"it.jinja: cannot render 4 messages \(.*({reason}).*; roles and an order that the template knows"
    with pytest.raises(ModelError, match=message):
        ChatTemplate(template, "it.jinja").render(MESSAGES)


def test_a_template_that_does_not_end_is_stopped() -> None:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    before = sys.gettrace()
    with pytest.raises(ModelError, match=r"it.jinja: runs for more than 2,000,000 steps; a template must end before"):
        ChatTemplate(forever, "it.jinja").render(MESSAGES)
    assert sys.gettrace() is before
    long = f"{{% for a in range(99) %}}{{{{ 'x' * {MAX_OUTPUT_CHARACTERS // 98} }}}}{{% endfor %}}"
    with pytest.raises(ModelError, match=r"it.jinja: writes more than 10,000,000 characters"):
        ChatTemplate(long, "it.jinja").render(MESSAGES)


@pytest.mark.parametrize(
    ("message", "key"),
    [({"role": "user"}, "content"), ({"content": "x"}, "role"), ({"role": 1, "content": "x"}, "role")],
)
def test_messages_have_a_role_and_content(message: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=rf"message 2: .*; a {key} that is text is required. Add it."):
        ChatTemplate(MARKED, "it.jinja").render([MESSAGES[0], message])


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ModelError, match=r"messages: 0; at least one is required. Add one of the user."):
        ChatTemplate(MARKED, "it.jinja").render([])
