"""Thoughts of models, however their text comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.text.thought_reader import MARKERS, ThoughtReader, thought_form
from mxconv.text.tool_calls import HERMES, ToolCall

TEMPLATE = "{{ message.content.split('</think>')[-1] }}"
CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
TOOLS = [{"name": "add"}]
ANSWERS = [  # end of the prompt, what a model writes, what it thought, what it says
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


@given(st.sampled_from(ANSWERS), st.data())
def test_a_thought_is_taken_out_however_it_comes(answer: tuple[str, str, str, str], data: st.DataObject) -> None:
    prompt, written, thought, text = answer
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    form = thought_form(TEMPLATE, prompt)
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
    form = thought_form(TEMPLATE, "<think>")
    assert form is not None
    reader = ThoughtReader(form, HERMES.reader(TOOLS))
    assert reader.feed(f"I could {CALL}</think>So: {CALL}") + reader.finish() == "So: "
    assert reader.calls == [ToolCall("add", "{}")] and reader.reasoning == f"I could {CALL}"


@pytest.mark.parametrize(("begin", "end"), MARKERS)
def test_markers_are_the_templates(begin: str, end: str) -> None:
    form = thought_form(f"{{{{ '{end}' }}}}", f"assistant: {begin}\n")
    assert form is not None and (form.begin, form.end, form.is_open) == (begin, end, True)
    assert thought_form(f"{{{{ '{end}' }}}}", "x", continued=f"{begin} hm").is_open  # type: ignore[union-attr]
    assert not thought_form(f"{{{{ '{end}' }}}}", f"{begin} x", continued=f"{begin} hm {end} x").is_open  # type: ignore[union-attr]
    assert thought_form("{{ messages }}", f"{begin}") is None


def test_under_a_constraint_a_text_without_the_marker_is_the_answer() -> None:
    from dataclasses import replace

    form = thought_form(TEMPLATE, "<think>")
    assert form is not None
    for written, thought, text in (("yes", "", "yes"), ("Hm</think>yes", "Hm", "yes")):
        reader = ThoughtReader(replace(form, may_lack=True), None)
        assert "".join(map(reader.feed, written)) + reader.finish() == text and reader.reasoning == thought
