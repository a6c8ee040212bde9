"""Calls of functions and thoughts in answers: read whole or piece by piece, and calls demanded."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.text.chat import ChatTemplate
from mxconv.text.constraint import Constraint, ConstraintVocabulary
from mxconv.text.harmony import HARMONY
from mxconv.text.text_stream import TextStream
from mxconv.text.thought_reader import MARKERS, ThoughtReader, thought_form
from mxconv.text.tokenizer import Tokenizer
from mxconv.text.tool_calls import GENERIC, HERMES, LLAMA, MISTRAL, MOST_CALLS, ToolCall, ToolForm, with_instructions
from mxconv.text.tool_forms import FORMS, FUNCTION_GEMMA, GEMMA, MISTRAL_NAMED, QWEN_CODER, form_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
TOOLS = [{"name": "add", "parameters": PARAMETERS}, {"name": "get_time"}]
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
    (HERMES, 'So: <tool_call>{"name": "add", "arguments": {"a": 1, "b": "é"}}', "So: ", [ADD]),
    (HERMES, '<tool_call>{"name": "get_time", "arguments": ""}</tool_call>', "", [NOW]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": \\"é\\"}"}</tool_call>', "", [ADD]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "1"}</tool_call>', None, []),  # type: ignore[list-item]
    (
        HERMES,
        '<tool_call>{"name": "get_time"}</tool_call><tool_call>{"name": "add", "parameters": {"a": 1, "b": "é"}}',
        "",
        [NOW, ADD],
    ),
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
    (
        QWEN_CODER,
        "So:\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\né\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        "So:\n",
        [ADD, NOW],
    ),
    (QWEN_CODER, "<tool_call>\n<function=rm>\n</function>\n</tool_call>", None, []),
    (
        MISTRAL_NAMED,
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "é"}[TOOL_CALLS]get_time[ARGS]{}',
        "",
        [ADD, NOW],
    ),
    (MISTRAL_NAMED, '[TOOL_CALLS]add[ARGS]{"a": 1', None, []),
    (MISTRAL_NAMED, "[TOOL_CALLS]add[ARGS]1", None, []),
    (MISTRAL_NAMED, "No call.", "No call.", []),
    (
        GEMMA,
        '<|tool_call>call:add{a:1,b:<|"|>é<|"|>}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        "",
        [ADD, NOW],
    ),
    (GEMMA, "<|tool_call>call:add{a:}<tool_call|>", None, []),
    (FUNCTION_GEMMA, "<start_function_call>call:add{a:1,b:<escape>é<escape>}<end_function_call>", "", [ADD]),
    (
        FUNCTION_GEMMA,
        "<start_function_call>call:add{a:[{c:true,d:<escape>{e:1}<escape>}]}<end_function_call>",
        "",
        [ToolCall("add", '{"a": [{"c": true, "d": "{e:1}"}]}')],
    ),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I add.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":1,"b":"é"}<|call|>',
        "I add.",
        [ADD],
    ),
    (HARMONY, "<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>", "", [NOW]),
    (HARMONY, "<|channel|>final<|message|>2 < 3<|return|>", "2 < 3", []),
    (HARMONY, '{"a": "<|"}', '{"a": "<|"}', []),
    (HARMONY, "<|channel|>commentary to=functions.rm<|message|>{}<|call|>", "{}", []),
    (GENERIC, 'Call it as {"name": "get_time", "arguments": {}}', None, []),
    (GENERIC, "Type {1: [2]}, [3] or def f() {", None, []),
    (GENERIC, '{"name": "add", "arguments": {"a": NaN}}', None, []),
    (GENERIC, '{"name": "add", "arguments": {"a": 1e999}}', "", [ToolCall("add", '{"a": 1.7976931348623157e+308}')]),
    (GENERIC, '{"name": "add", "arguments": {"b": "\\ud800"}}', "", [ToolCall("add", '{"b": "?"}')]),
]
REASONING = "Hm."


@given(st.sampled_from(ANSWERS), st.data())
def test_an_answer_is_taken_apart_however_it_comes(
    answer: tuple[ToolForm, str, str | None, list[ToolCall]], data: st.DataObject
) -> None:
    form, written, text, calls = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    reader, said = form.reader(TOOLS), []
    for begin, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        said.append(reader.feed(written[begin:end]))
        assert not any("</tool_call>" in piece for piece in said) or not calls
    said.append(reader.finish())
    assert "".join(said) == (written if text is None else text)
    assert reader.calls == calls
    assert reader.reasoning == (REASONING if REASONING in written else "")


def test_text_before_a_call_comes_at_once() -> None:
    reader = HERMES.reader(TOOLS)
    assert reader.feed("I add <") == "I add "
    assert reader.feed("b> and ") == "<b> and "
    assert reader.feed("<tool_call>") == "" and reader.calls == []
    assert GENERIC.reader(TOOLS).feed("It is") == "It is"


def test_no_more_calls_than_a_limit() -> None:
    reader = HERMES.reader(TOOLS)
    reader.feed('<tool_call>{"name": "add", "arguments": {}}</tool_call>' * (MOST_CALLS + 9))
    assert len(reader.calls) == MOST_CALLS


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"enum": [1, 2]},
        "word": {"type": "string", "enum": ["x", "y z"]},
        "text": {"type": "string", "maxLength": 9},
        "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"i": {"type": "integer"}}}},
    },
    "required": ["n", "on"],
    "additionalProperties": False,
}
SPECIAL = sorted({marker for form in {*FORMS.values(), GENERIC} for marker in form.markers if marker})


@pytest.fixture(scope="module")
def with_markers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer of 1,024 tokens and all markers, which are special tokens."""
    folder = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("markers") / "model")
    members = json.loads((folder / "tokenizer.json").read_text())
    for number, content in enumerate(SPECIAL, 1024):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        members["added_tokens"].append({"id": number, "content": content, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(members))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    "form", [*dict.fromkeys(FORMS.values()), GENERIC], ids=lambda form: form.begin or type(form).__name__
)
@pytest.mark.parametrize("are_special", [False, True])
@pytest.mark.parametrize("may_be_several", [False, True])
def test_what_is_demanded_can_be_read(
    form: ToolForm, are_special: bool, may_be_several: bool, with_markers: Tokenizer
) -> None:
    """Answers that follow the grammar, written token by token at random, are calls that fit their schemas."""
    import numpy as np

    tokenizer = with_markers if are_special else Tokenizer.from_folder(EXAMPLE)
    tools = [{"name": "add", "parameters": SCHEMA}, {"name": "get_time"}]
    vocab_size = 1024 + len(SPECIAL)
    grammar = ConstraintVocabulary(tokenizer, vocab_size).compile(
        Constraint("grammar", form.grammar(tools, may_be_several, tokenizer))
    )
    shown = [token for name in form.markers if (token := tokenizer.special_token_id(name)) is not None]
    assert bool(shown) == (are_special and any(form.markers))
    counts, names = set(), set()
    for seed in range(40):
        matcher, random, stream, reader = grammar.matcher(), np.random.default_rng(seed), None, form.reader(tools)
        stream, said = TextStream(tokenizer, shown=shown), ""
        for _ in range(300):
            allowed = np.flatnonzero(matcher.mask(vocab_size))
            ends = [token for token in allowed if token in tokenizer.eos_token_ids]
            token = int(random.choice(ends if ends and random.random() < 0.5 else allowed))
            if token in tokenizer.eos_token_ids:
                break
            assert matcher.consume(token)
            said += reader.feed(stream.feed(token))
        else:
            continue
        assert said + reader.feed(stream.finish()) + reader.finish() == ""
        counts.add(len(reader.calls))
        for call in reader.calls:
            names.add(call.name)
            jsonschema.validate(json.loads(call.arguments), SCHEMA if call.name == "add" else {"type": "object"})
    assert names == {"add", "get_time"}
    can_repeat = may_be_several and form not in (LLAMA, GENERIC, HARMONY)
    assert min(counts) == 1 and (max(counts) > 1) == can_repeat


def test_the_form_is_the_templates() -> None:
    assert form_of("{{ '<tool_call>' }}") is HERMES
    assert form_of("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert form_of('{"name": function name, "parameters": ...} <|python_tag|>') is LLAMA
    assert form_of("{{ messages }}") is GENERIC
    assert form_of("<tool_call>\n<function=example>") is QWEN_CODER
    assert form_of("{{ '<|tool_call>call:' }}") is GEMMA and form_of("<|start|>assistant<|channel|>") is HARMONY
    assert form_of("[TOOL_CALLS]name[ARGS]") is MISTRAL_NAMED and form_of("<start_function_call>") is FUNCTION_GEMMA


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
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]
    again = with_instructions(turns, [{"name": "add"}])
    assert again[0]["content"].startswith("Be brief.\n\n") and len(again) == 2
    assert with_instructions(turns, []) == turns
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "test")
    assert template.render(told).startswith("<system>You can call")


THINKING = "{{ message.content.split('</think>')[-1] }}"
ADD_CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
THOUGHTS = [  # end of the prompt, what a model writes, what it thought, what it says
    ("", "<think>\nHm, so.\n</think>\n\nHello!\n", "Hm, so.", "Hello!\n"),
    ("", "\n<think></think>Hello", "", "Hello"),
    ("", "<think>\nHm, so", "Hm, so", ""),
    ("", "<thin", "", "<thin"),
    ("", "Hello <think>x</think>", "", "Hello <think>x</think>"),
    ("", "  Hello", "", "  Hello"),
    ("", "", "", ""),
    ("<think>\n", "Hm,\n\nso.\n</think>\n\nHello", "Hm,\n\nso.", "Hello"),
    ("<think>\n", "Hm </thin> </think>", "Hm </thin>", ""),
    ("<think>\n", "Hm </thin", "Hm </thin", ""),
    ("<think>\n\n</think>\n\n", "Hello", "", "Hello"),
]


@given(st.sampled_from(THOUGHTS), st.data())
def test_a_thought_is_taken_out_however_it_comes(answer: tuple[str, str, str, str], data: st.DataObject) -> None:
    prompt, written, thought, text = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    form = thought_form(THINKING, prompt)
    assert form is not None
    with_calls = data.draw(st.booleans())
    reader, said, seen = ThoughtReader(form, HERMES.reader(TOOLS) if with_calls else None), "", ""
    for begin, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        said += reader.feed(written[begin:end])
        assert reader.reasoning.startswith(seen)
        seen = reader.reasoning
    said += reader.finish()
    assert (reader.reasoning, said, reader.calls) == (thought, text, [])


def test_calls_after_a_thought_are_read_and_those_inside_are_none() -> None:
    form = thought_form(THINKING, "<think>")
    assert form is not None
    reader = ThoughtReader(form, HERMES.reader(TOOLS))
    assert reader.feed(f"I could {ADD_CALL}</think>So: {ADD_CALL}") + reader.finish() == "So: "
    assert reader.calls == [ToolCall("add", "{}")] and reader.reasoning == f"I could {ADD_CALL}"


@pytest.mark.parametrize(("begin", "end"), MARKERS)
def test_markers_are_the_templates(begin: str, end: str) -> None:
    form = thought_form(f"{{{{ '{end}' }}}}", f"assistant: {begin}\n")
    assert form is not None and (form.begin, form.end, form.is_open) == (begin, end, True)
    assert thought_form(f"{{{{ '{end}' }}}}", "x", continued=f"{begin} hm").is_open  # type: ignore[union-attr]
    assert not thought_form(f"{{{{ '{end}' }}}}", f"{begin} x", continued=f"{begin} hm {end} x").is_open  # type: ignore[union-attr]
    assert thought_form("{{ messages }}", f"{begin}") is None


def test_under_a_constraint_a_text_without_the_marker_is_the_answer() -> None:
    from dataclasses import replace

    form = thought_form(THINKING, "<think>")
    assert form is not None
    for written, thought, text in (("yes", "", "yes"), ("Hm</think>yes", "Hm", "yes")):
        reader = ThoughtReader(replace(form, may_lack=True), None)
        assert "".join(map(reader.feed, written)) + reader.finish() == text and reader.reasoning == thought
