"""Chat templates wherever models keep them, as transformers finds them, what one may not do, and what is refused.

That conversations are rendered as by transformers: test_chat_families.py.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf_models import write_model
from packages import quantize
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from mxconv.checkpoint.folder import companions
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.chat import ChatTemplate
from mxconv.text.chat_templates import read_templates
from mxconv.text.template_sandbox import MAX_OUTPUT_CHARACTERS

A = "A{% for m in messages %}<{{ m.content }}>{% endfor %}\n{{ bos_token }}"
B = A.replace("A", "B")
JINJA, MORE = "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
MESSAGES = [{"role": "user", "content": "Größe <b>of</b> 'x'?\n🙂"}, {"role": "assistant", "content": " 12\n"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object"}}}]


def put(folder: Path, files: dict[str, Any]) -> Path:
    """A tokenizer folder as transformers reads it."""
    Backend(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, [])).save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "chat_template": files.get("tokenizer_config.json")}
    for name, content in (files | {"tokenizer_config.json": settings}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def listed(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


# files, and which template renders without and with tools; None: as transformers does, which is compared
PLACES: dict[str, tuple[dict[str, Any], str | None]] = {
    "a text": ({"tokenizer_config.json": A}, None),
    "a file": ({JINJA: A}, None),
    "the file first": ({JINJA: A, "tokenizer_config.json": B}, None),
    "the file first, with a list": ({JINJA: A, "tokenizer_config.json": listed(default=B, tool_use=B)}, None),
    "a list": ({"tokenizer_config.json": listed(default=A, tool_use=B)}, None),
    "an object": ({"tokenizer_config.json": {"tool_use": B, "default": A}}, None),
    "files": ({JINJA: A, MORE: B}, None),
    "configuration before the processor's": (
        {"tokenizer_config.json": A, "chat_template.json": {"chat_template": B}},
        None,
    ),
    "line ends": ({JINJA: A.replace("\n", "\r\n").encode()}, None),
    "a list of one": ({"tokenizer_config.json": listed(rag=A)}, "AA"),
    "an object with nulls": ({"tokenizer_config.json": {"default": A, "tool_use": None}}, "AA"),
    "byte order mark": ({JINJA: b"\xef\xbb\xbf" + A.encode()}, "AA"),
    "chat_template.json": ({"chat_template.json": {"chat_template": A}}, "AA"),
    "chat_template.json, null above": ({JINJA[:-5] + "json": {"chat_template": A}, "processor_config.json": {}}, "AA"),
    "processor_config.json": ({"processor_config.json": {"chat_template": {"default": A, "tool_use": B}}}, "AB"),
    "a default below": ({MORE: B, "tokenizer_config.json": A}, "AB"),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_template_is_the_one_of_transformers(name: str, tmp_path: Path) -> None:
    files, expected = PLACES[name]
    put(tmp_path, files)
    chat = ChatTemplate.from_folder(tmp_path)
    ours = [chat.render(MESSAGES), chat.render(MESSAGES, tools=TOOLS)]
    if expected is not None:
        assert [text[0] for text in ours] == list(expected)
        return
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours == [theirs.apply_chat_template(MESSAGES, tokenize=False, tools=tools) for tools in (None, TOOLS)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer_config.json": listed(rag=A, tool_use=B)},
            r"tokenizer_config.json: chat_template: holds 'rag', 'tool_use'; one of several templates must be",
        ),
        ({"chat_template.json": {"chat_template": 3}}, r"chat_template.json: chat_template is 3; a text, or a list of"),
        ({"chat_template.json": []}, r"chat_template.json: a JSON list is at the top; a JSON object is required"),
        ({JINJA: A, MORE: b"\xff"}, r"tool_use.jinja: byte 0 is no UTF-8; text is required"),
        ({JINJA: A, MORE: "x" * 1_000_001}, r"tool_use.jinja: 1,000,001 bytes long; at most 1,000,000 are read"),
        ({JINJA: "x" * 1_000_001}, r"chat_template.jinja: 1,000,001 bytes long; at most 1,000,000 are read"),
        ({"tokenizer_config.json": "x" * 1_000_001}, r"1,000,001 bytes long; at most 1,000,000 are read"),
        ({JINJA: b"abc\xff"}, r"chat_template.jinja: byte 3 is no UTF-8; text is required"),
        *(
            ({"tokenizer_config.json": wrong}, r"chat_template is .*; a text, or a list of objects with a name and a")
            for wrong in (3, {"default": 1}, [{"name": "default"}], ["x"], [{"name": 1, "template": "x"}])
        ),
    ],
)
def test_what_is_no_template_is_refused_by_name(files: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ModelError, CheckpointError), match=message):
        read_templates(put(tmp_path, files))


def test_special_tokens_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / JINJA).write_text("{{ bos_token }}{{ eos_token }}")
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"content": "<a>"}, "eos_token": "<b>"}')
    assert ChatTemplate.from_folder(tmp_path).render(MESSAGES) == "<a><b>"


def test_a_model_without_a_template_is_told_apart(tmp_path: Path) -> None:
    for folder in (tmp_path, put(tmp_path, {})):
        with pytest.raises(ModelError, match=r"there is no chat template; chat_template.jinja, or .* generate without"):
            ChatTemplate.from_folder(folder)
    (tmp_path / JINJA).mkdir()
    (tmp_path / "tokenizer_config.json").write_text("nothing")
    with pytest.raises(CheckpointError, match="a JSON object is required"):
        ChatTemplate.from_folder(tmp_path)


def test_further_templates_go_into_packages_and_exports(tmp_path: Path) -> None:
    from mxconv.interop.plain_safetensors import export_safetensors

    source = write_model(tmp_path / "source")
    put_files = {JINJA: A, MORE: B}
    (source / MORE).parent.mkdir()
    for name, content in put_files.items():
        (source / name).write_text(content)
    assert companions([JINJA, "tokenizer_config.json", "other.jinja"]) == [JINJA, "tokenizer_config.json"]
    quantize(source, tmp_path / "package")
    export_safetensors(tmp_path / "package", tmp_path / "out")
    for folder in (tmp_path / "package", tmp_path / "out"):
        assert read_templates(folder)[0] == {"default": A, "tool_use": B}


TURNS = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Größe <b>of</b> 'x' & \"y\"?\n🙂"},
    {"role": "assistant", "content": "  12\n"},
    {"role": "user", "content": "Why?"},
]
MARKED = "{% for message in messages %}{{ message.content | trim }}{% endfor %}"


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
        ChatTemplate(template, "it.jinja").render(TURNS)


def test_a_template_that_does_not_end_is_stopped() -> None:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    before = sys.gettrace()
    with pytest.raises(ModelError, match=r"it.jinja: runs for more than 2,000,000 steps; a template must end before"):
        ChatTemplate(forever, "it.jinja").render(TURNS)
    assert sys.gettrace() is before
    long = f"{{% for a in range(99) %}}{{{{ 'x' * {MAX_OUTPUT_CHARACTERS // 98} }}}}{{% endfor %}}"
    with pytest.raises(ModelError, match=r"it.jinja: writes more than 10,000,000 characters"):
        ChatTemplate(long, "it.jinja").render(TURNS)


@pytest.mark.parametrize(
    ("message", "key"),
    [({"role": "user"}, "content"), ({"content": "x"}, "role"), ({"role": 1, "content": "x"}, "role")],
)
def test_messages_have_a_role_and_content(message: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=rf"message 2: .*; a {key} that is text is required. Add it."):
        ChatTemplate(MARKED, "it.jinja").render([TURNS[0], message])


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(ModelError, match=r"messages: 0; at least one is required. Add one of the user."):
        ChatTemplate(MARKED, "it.jinja").render([])
