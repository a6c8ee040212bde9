"""Calls of functions: the forms that models write, read whole or piece by piece, and demanded."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.text.chat import ChatTemplate
from mxconv.text.constraint import Constraint, ConstraintVocabulary
from mxconv.text.tokenizer import Tokenizer
from mxconv.text.tool_calls import (
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    MOST_CALLS,
    ToolCall,
    ToolForm,
    form_of,
    with_instructions,
)

NAMES = ["add", "get_time"]
ADD, NOW = ToolCall("add", '{"a": 1, "b": "é"}'), ToolCall("get_time", "{}")
# of each form: an answer, the text of it, its calls
ANSWERS: list[tuple[ToolForm, str, str, list[ToolCall]]] = [
    (HERMES, '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>', "", [ADD]),
    (
        HERMES,
        'I add.\n<tool_call>{"name":"add","arguments":{"a":1,"b":"é"}}</tool_call>\n<tool_call>\n{"name": "get_time", '
        '"arguments": {}}\n</tool_call>\n',
        "I add.\n",
        [ADD, NOW],
    ),
    (HERMES, "1 < 2 <tool", "1 < 2 <tool", []),
    (HERMES, "<tool_call>\nnothing", "<tool_call>\nnothing", []),
    (HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call> done', None, []),  # type: ignore[list-item]
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', None, []),  # type: ignore[list-item]
    (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "é"}}]', "", [ADD]),
    (
        MISTRAL,
        ' [{"name": "get_time", "arguments": {}}, {"name": "add", "arguments": {"a": 1, "b": "é"}}]',
        "",
        [NOW, ADD],
    ),
    (MISTRAL, '[{"name": "get_time"}, {"name": "other"}]', None, []),  # type: ignore[list-item]
    (MISTRAL, "[1] is a list", "[1] is a list", []),
    (LLAMA, '{"name": "add", "parameters": {"a": 1, "b": "é"}}', "", [ADD]),
    (LLAMA, '\n{"type": "function", "name": "get_time", "parameters": {}}', "", [NOW]),
    (LLAMA, "It is late.", "It is late.", []),
    (GENERIC, '{"name": "add", "arguments": {"a": 1, "b": "é"}}', "", [ADD]),
    (GENERIC, '{"name": "add", "argum', '{"name": "add", "argum', []),
    (GENERIC, '{"a": 1}', '{"a": 1}', []),
    (GENERIC, "[" * 5000, None, []),  # type: ignore[list-item]
    (GENERIC, "", "", []),
]


@given(st.sampled_from(ANSWERS), st.data())
def test_an_answer_is_taken_apart_however_it_comes(
    answer: tuple[ToolForm, str, str | None, list[ToolCall]], data: st.DataObject
) -> None:
    form, written, text, calls = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    reader, said = form.reader(NAMES), []
    for begin, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        said.append(reader.feed(written[begin:end]))
        assert not any("</tool_call>" in piece for piece in said) or not calls
    said.append(reader.finish())
    assert "".join(said) == (written if text is None else text)
    assert reader.calls == calls


def test_text_before_a_call_comes_at_once() -> None:
    reader = HERMES.reader(NAMES)
    assert reader.feed("I add <") == "I add "
    assert reader.feed("b> and ") == "<b> and "
    assert reader.feed("<tool_call>") == "" and reader.calls == []
    assert GENERIC.reader(NAMES).feed("It is") == "It is"


def test_no_more_calls_than_a_limit() -> None:
    reader = HERMES.reader(NAMES)
    reader.feed('<tool_call>{"name": "add", "arguments": {}}</tool_call>' * (MOST_CALLS + 9))
    assert len(reader.calls) == MOST_CALLS


@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA, GENERIC], ids=["hermes", "mistral", "llama", "generic"])
@pytest.mark.parametrize("may_be_several", [False, True])
def test_what_is_demanded_can_be_read(form: ToolForm, may_be_several: bool) -> None:
    """Answers that follow the grammar, written token by token at random, are calls that fit their schemas."""
    import numpy as np

    tokenizer = Tokenizer.from_folder(Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    tools = [{"name": "add", "parameters": schema}, {"name": "get_time", "parameters": schema}]
    grammar = ConstraintVocabulary(tokenizer, 1024).compile(
        Constraint("grammar", form.grammar(tools, may_be_several, tokenizer))
    )
    counts = set()
    for seed in range(30):
        matcher, random, ids = grammar.matcher(), np.random.default_rng(seed), []
        for _ in range(400):
            token = int(random.choice(np.flatnonzero(matcher.mask(1024))))
            if token in tokenizer.eos_token_ids:
                break
            ids.append(token)
            assert matcher.consume(token)
        else:
            continue
        reader = form.reader(NAMES)
        assert reader.feed(tokenizer.decode(ids)) + reader.finish() == ""
        counts.add(len(reader.calls))
        for call in reader.calls:
            jsonschema.validate(json.loads(call.arguments), schema)
    assert counts == {1} or (may_be_several and form.end + str(form.is_list) != "False" and min(counts) == 1)


def test_a_marker_that_is_a_special_token_is_demanded_as_one_and_not_read(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m", tmp_path / "model")
    members = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    for number, content in enumerate(("<tool_call>", "</tool_call>"), 1024):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        members["added_tokens"].append({"id": number, "content": content, "special": True, **flags})
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(members))
    tokenizer = Tokenizer.from_folder(tmp_path / "model")
    assert tokenizer.special_token_id("<tool_call>") == 1024
    text = HERMES.grammar([{"name": "add"}], False, tokenizer)
    matcher = ConstraintVocabulary(tokenizer, 1026).compile(Constraint("grammar", text)).matcher()
    assert matcher.mask(1026).nonzero()[0].tolist() == [1024]
    ids = [1024, *tokenizer.encode('\n{"name": "add", "arguments": {}}\n', add_special_tokens=False), 1025]
    assert all(matcher.consume(token) for token in ids)
    reader = HERMES.as_decoded(tokenizer).reader(NAMES)
    assert reader.feed(tokenizer.decode(ids)) + reader.finish() == "" and len(reader.calls) == 1


def test_the_form_is_the_templates() -> None:
    assert form_of("{{ '<tool_call>' }}") is HERMES
    assert form_of("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert form_of('{"name": function name, "parameters": ...} <|python_tag|>') is LLAMA
    assert form_of("{{ messages }}") is GENERIC


def test_a_template_that_knows_no_functions_is_told_of_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    told = with_instructions(
        [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ],
        [{"name": "add"}],
    )
    assert [turn["role"] for turn in told] == ["system", "user", "assistant", "user"]
    assert '{"type": "function", "function": {"name": "add"}}' in told[0]["content"]
    assert told[2]["content"] == '{"name": "add", "arguments": {"a": 1}}' and "2" in told[3]["content"]
    again = with_instructions([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], [])
    assert again[0]["content"].startswith("Be brief.\n\n") and len(again) == 2
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "test")
    assert template.render(told).startswith("<system>You can call")
