"""Running a template that came with a checkpoint, and so from anybody.

Jinja's sandbox gives it no files, no imports and no Python objects; here its steps and its output are limited too. What
one step does is not: a hostile template can still fill the memory with one huge string, and thereby end the process.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from types import FrameType
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000  # lines of Python: less than a second
MAX_OUTPUT_CHARACTERS = 10_000_000


class LimitError(BaseException):
    """Steps or output beyond what is allowed. No Exception, so that nothing on the way handles it."""


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """The text that a template makes of its variables.

    Raises:
        LimitError: it runs or writes too long.
        Exception: anything that an expression of Python can raise, TemplateError most often.
    """
    with _limited_steps():
        return _joined(_environment().from_string(source).generate(variables))


class _Generation(Extension):
    """{% generation %}, with which training marks the assistant's words. Its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  the name and kind that Jinja looks for

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **attributes: Any) -> None:
        found = dict(*args[1:], **attributes)  # `self` may be an attribute
        for name in found:
            _check_name(name)
        Namespace.__init__(args[0], found)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace with {name!r}; names must not begin with an underscore")


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["namespace"] = _Namespace
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


@contextmanager
def _limited_steps() -> Iterator[None]:
    """Count the lines that Python executes; a template has no loop that escapes this."""
    num_left = MAX_STEPS

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise LimitError(f"runs for more than {MAX_STEPS:,} steps")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


def _joined(pieces: Iterator[str]) -> str:
    texts, num_characters = [], 0
    for piece in pieces:
        texts.append(piece)
        num_characters += len(piece)
        if num_characters > MAX_OUTPUT_CHARACTERS:
            raise LimitError(f"writes more than {MAX_OUTPUT_CHARACTERS:,} characters")
    return "".join(texts)
