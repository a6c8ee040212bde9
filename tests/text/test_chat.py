"""What a chat template may not do, and which conversations are refused.

That others are rendered as by transformers: test_chat_families.py; where templates are: test_chat_templates.py.
"""

import sys
from typing import Any

import pytest

from mxconv.errors import ModelError
from mxconv.text.chat import ChatTemplate
from mxconv.text.template_sandbox import MAX_OUTPUT_CHARACTERS

MESSAGES = [
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
