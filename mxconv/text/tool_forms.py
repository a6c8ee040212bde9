"""Forms of calls that are no JSON objects, and which of all forms a chat template teaches.

Form, by what stands in the template:
    <start_function_call>   call:NAME{key:value} between tags, strings between <escape> (Gemma 3's FunctionGemma)
    <|tool_call>            the same between other tags, strings between <|"|> (Gemma 4)
    <|channel|>             messages with a channel and a recipient (gpt-oss: `harmony.py`)
    <function=              <function=NAME> with <parameter=KEY> inside <tool_call> (Qwen 3 Coder, Qwen 3.5)
    <tool_call>             an object with `name` and `arguments` between tags, any number of them (Hermes, Qwen)
    [ARGS]                  [TOOL_CALLS]NAME[ARGS] and an object (Mistral since 2025)
    [TOOL_CALLS]            a list of objects with `name` and `arguments` (Mistral)
    <|python_tag|>          an object with `name` and `parameters`, alone (Llama 3)
    none of these           an object with `name` and `arguments`, alone
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from mxconv.text.harmony import HARMONY
from mxconv.text.tokenizer import Tokenizer
from mxconv.text.tool_calls import (
    ANY_OBJECT,
    GENERIC,
    HERMES,
    LLAMA,
    MISTRAL,
    ToolCall,
    ToolForm,
    json_in_grammar,
    marker_in_grammar,
    parameters_of,
    parsed,
)

MAX_DEPTH = 16  # of values in each other; deeper ones may be anything
SCALARS = ("integer", "number", "boolean", "null")
BRACE_CALL = re.compile(r"\s*call:([^\s{]+)(\{.*\})\s*", re.DOTALL)
BARE_KEY = re.compile(r"(?<=[{,])\s*([^\s{}\[\],:\"]+)\s*:")
TAGGED_CALL = re.compile(r"\s*<function=([^>\s]+)>(.*)</function>\s*", re.DOTALL)
TAGGED_VALUE = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def form_of(template: str) -> ToolForm:
    """The form that a chat template, the source of it, teaches."""
    return next((form for marker, form in FORMS.items() if marker in template), GENERIC)


def _properties(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool]]:
    """Schema of each member of an object, and whether it is required; required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return {}
    found = {key: (value, isinstance(required, list) and key in required) for key, value in properties.items()}
    return dict(sorted(found.items(), key=lambda item: not item[1][1]))


def _type(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _any_text(schema: Any) -> str:
    """The terminal of a string as long as its schema allows."""
    bounds = schema if isinstance(schema, Mapping) else {}
    return f"/(?s:.{{{bounds.get('minLength', 0)},{bounds.get('maxLength', '')}}})/"


class _Rules:
    """The rules of a grammar in Lark, each under a name of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.lines: list[str] = []
        self._numbers = count(1)

    def add(self, right: str, options: str = "") -> str:
        """Add a rule; returns its name."""
        name = f"r{next(self._numbers)}"
        self.lines.append(f"{name}{options}: {right}")
        return name

    def grammar(self, calls: Sequence[str], between: str) -> str:
        """The whole, of an answer that consists of calls; `between` is empty where there is only one."""
        call = self.add(" | ".join(calls))
        return "\n".join([f"start: {call}" + (f" ({between} {call})*" if between else ""), *self.lines, ""])


@dataclass(frozen=True)
class TaggedForm(ToolForm):
    """Each argument between tags of its own; strings as they are, other values as JSON."""

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        rules = _Rules(tokenizer)
        begin, end = (marker_in_grammar(part, tokenizer) for part in (self.begin, self.end))
        calls = []
        for tool in tools:
            parts = [
                rules.add(f'{json.dumps(f"<parameter={key}>")} "\\n" {self._value(rules, schema)} "\\n"')
                + ("" if is_required else "?")
                for key, (schema, is_required) in _properties(parameters_of(tool)).items()
            ]
            head = json.dumps(f"<function={tool['name']}>\n")
            calls.append(rules.add(f'{begin} {head} {" ".join(parts)} "</function>" {end}'))
        return rules.grammar(calls, '"\\n"' if may_be_several else "")

    def _value(self, rules: _Rules, schema: Any) -> str:
        if isinstance(schema, Mapping) and _is_texts(schema.get("enum")):
            return "(" + " | ".join(json.dumps(each) for each in schema["enum"]) + ') "\\n</parameter>"'
        if _type(schema) == "string" or not isinstance(schema, Mapping):
            return rules.add(_any_text(schema), '[suffix="\\n</parameter>"]')
        return f'{rules.add(json_in_grammar(schema))} "\\n</parameter>"'

    def read(self, text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[ToolCall]:
        found = TAGGED_CALL.fullmatch(text)
        if found is None or found[1] not in tools:
            return []
        schemas = _properties(tools[found[1]].get("parameters") or ANY_OBJECT)
        arguments = {}
        for key, written in TAGGED_VALUE.findall(found[2]):
            is_text = _type(schemas.get(key, ({}, False))[0]) == "string"
            value = None if is_text else parsed(written)
            arguments[key] = written if value is None and (is_text or written != "null") else value
        return [ToolCall.of(found[1], arguments)]


@dataclass(frozen=True)
class NamedForm(ToolForm):
    """A call's name after the first marker, and its arguments, a JSON object, after the second one."""

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        rules = _Rules(tokenizer)
        begin, middle = (marker_in_grammar(part, tokenizer) for part in (self.begin, self.arguments))
        calls = [
            rules.add(f"{begin} {json.dumps(tool['name'])} {middle} " + rules.add(json_in_grammar(parameters_of(tool))))
            for tool in tools
        ]
        return rules.grammar(calls, '""' if may_be_several else "")

    @property
    def markers(self) -> tuple[str, ...]:
        return self.begin, self.arguments

    def read(self, text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[ToolCall]:
        calls: list[ToolCall] = []
        for part in text.strip().removeprefix(self.begin).split(self.begin):
            name, _, arguments = part.partition(self.arguments)
            value = parsed(arguments)
            if name.strip() not in tools or not isinstance(value, dict):
                return []
            calls.append(ToolCall.of(name.strip(), value))
        return calls


@dataclass(frozen=True)
class BracedForm(ToolForm):
    """call:NAME{key:value}: as JSON, but for keys without quotes and strings between marks of their own.

    Args:
        quote: the mark before and after a string.
    """

    quote: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.begin, self.end, self.quote

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        rules = _Rules(tokenizer)
        begin, end = (marker_in_grammar(part, tokenizer) for part in (self.begin, self.end))
        calls = []
        for tool in tools:
            arguments = self._value(rules, {"type": "object", **parameters_of(tool)}, 0)
            calls.append(rules.add(f"{begin} {json.dumps('call:' + tool['name'])} {arguments} {end}"))
        return rules.grammar(calls, '""' if may_be_several else "")

    def _value(self, rules: _Rules, schema: Any, depth: int) -> str:
        """The rule of a value; one whose schema has no plain type, or says more than it, may be anything."""
        quote = marker_in_grammar(self.quote, rules.tokenizer)
        kind = _type(schema) if depth < MAX_DEPTH else None
        if isinstance(schema, Mapping) and _is_texts(schema.get("enum")):
            return "(" + " | ".join(f"{quote} {json.dumps(each)} {quote}" for each in schema["enum"]) + ")"
        if kind == "string":
            return self._text(rules, schema)
        if kind in SCALARS or (kind is None and isinstance(schema, Mapping) and "enum" in schema):
            return rules.add(json_in_grammar(schema))
        if kind == "array":
            item = self._value(rules, schema.get("items"), depth + 1)
            return rules.add(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object" and (properties := _properties(schema)):
            return rules.add(f'"{{" {self._members(rules, properties, depth)} "}}"')
        scalar = " | ".join(rules.add(json_in_grammar({"type": each})) for each in SCALARS[1:])
        value = rules.add(f"{self._text(rules, None)} | {scalar}")
        return value if kind != "object" else rules.add(f'"{{" (/\\w+/ ":" {value} ("," /\\w+/ ":" {value})*)? "}}"')

    def _members(self, rules: _Rules, properties: Mapping[str, tuple[Any, bool]], depth: int) -> str:
        """Members in their order, commas between those that are there."""
        members = [
            (rules.add(f"{json.dumps(key + ':')} {self._value(rules, schema, depth + 1)}"), is_required)
            for key, (schema, is_required) in properties.items()
        ]
        required = [name for name, is_required in members if is_required]
        optional = [name for name, is_required in members if not is_required]
        right = "".join(f' ("," {name})?' for name in optional)
        if required:
            return ' "," '.join(required) + right
        starts = [
            name + "".join(f' ("," {other})?' for other in optional[place + 1 :]) for place, name in enumerate(optional)
        ]
        return "(" + " | ".join(starts) + ")?"

    def _text(self, rules: _Rules, schema: Any) -> str:
        quote = marker_in_grammar(self.quote, rules.tokenizer)
        if quote.strip().startswith("<["):
            return rules.add(f"{quote} {_any_text(schema)} {quote}")
        return rules.add(f"{quote} {rules.add(_any_text(schema), f'[suffix={json.dumps(self.quote)}]')}")

    def read(self, text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[ToolCall]:
        found = BRACE_CALL.fullmatch(text)
        if found is None or found[1] not in tools:
            return []
        pieces = found[2].split(self.quote)  # every other one is a string
        spelled = (
            json.dumps(piece) if place % 2 else BARE_KEY.sub(r'"\1":', piece) for place, piece in enumerate(pieces)
        )
        arguments = parsed("".join(spelled))
        return [] if arguments is None else [ToolCall.of(found[1], arguments)]


def _is_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(each, str) for each in values)


FUNCTION_GEMMA = BracedForm("<start_function_call>", "<end_function_call>", quote="<escape>")
GEMMA = BracedForm("<|tool_call>", "<tool_call|>", quote='<|"|>')
QWEN_CODER = TaggedForm("<tool_call>\n", "\n</tool_call>")
MISTRAL_NAMED = NamedForm("[TOOL_CALLS]", "", "[ARGS]")
FORMS = {  # by what stands in a template that teaches it; the first that is there
    "<start_function_call>": FUNCTION_GEMMA,
    "<|tool_call>": GEMMA,
    "<|channel|>": HARMONY,
    "<function=": QWEN_CODER,
    "<tool_call>": HERMES,
    "[ARGS]": MISTRAL_NAMED,
    "[TOOL_CALLS]": MISTRAL,
    "<|python_tag|>": LLAMA,
    '"parameters"': LLAMA,
}
