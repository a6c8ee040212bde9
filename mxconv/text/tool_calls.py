"""Calls of functions in a model's text: the form that its chat template teaches it, read and demanded.

This file has the forms whose calls are JSON objects with a name and arguments; `tool_forms.py` has the others.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxconv.errors import ModelError
from mxconv.text.constraint import JSON_STYLE
from mxconv.text.json_schema import strict_schema
from mxconv.text.tokenizer import Tokenizer

MOST_CALLS = 64  # of an answer


@dataclass(frozen=True)
class ToolCall:
    """A call as a model wrote it."""

    name: str
    arguments: str  # a JSON object

    @classmethod
    def of(cls, name: str, arguments: dict[str, Any]) -> "ToolCall":
        """A call with these arguments; halves of characters in them become question marks."""
        return cls(name, json.dumps(arguments, ensure_ascii=False).encode(errors="replace").decode())


class AnswerReader(ABC):
    """Takes an answer apart, piece by piece, into text, calls and thoughts; what is not certain is held back."""

    def __init__(self) -> None:
        self._held = ""
        self.calls: list[ToolCall] = []
        self.reasoning = ""

    @abstractmethod
    def feed(self, text: str) -> str:
        """Go on with a piece; returns what is text for certain."""

    @abstractmethod
    def finish(self) -> str:
        """Return the rest of the text, where the answer has ended."""

    def _release(self, count: int) -> str:
        said, self._held = self._held[:count], self._held[count:]
        return said


@dataclass(frozen=True)
class ToolForm:
    """A way in which a model writes calls: here as JSON objects.

    Args:
        begin: before each call, or before a list of them; empty for nothing.
        end: after each.
        arguments: the key of a call's arguments.
        is_list: whether one list holds all calls.
    """

    begin: str
    end: str
    arguments: str = "arguments"
    is_list: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Names of the special tokens that readers need to see, where a tokenizer has such."""
        return self.begin.strip(), self.end.strip()

    @property
    def always_reads(self) -> bool:
        """Whether answers have to be taken apart where there are no functions to call, too."""
        return False

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        """A grammar in Lark of an answer that calls some functions, by their JSON Schemas, and says nothing else.

        Args:
            tools: `name` and perhaps `parameters`, a JSON Schema, of each.
            may_be_several: whether there may be more than one call.
            tokenizer: of the model, some of whose markers are special tokens.

        Raises:
            ModelError: a schema has a keyword that would be held in part.
        """
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool["name"]}, self.arguments: parameters_of(tool)},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        call: dict[str, Any] = {"anyOf": calls} if len(calls) > 1 else calls[0]
        if self.is_list:
            call = {"type": "array", "items": call, "minItems": 1, "maxItems": MOST_CALLS if may_be_several else 1}
        begin, end = (marker_in_grammar(part, tokenizer) for part in (self.begin, self.end))
        several = ' ("\\n" call)*' if may_be_several and self.end else ""
        return f"start: call{several}\ncall: {begin}json{end}\njson: {json_in_grammar(call)}\n"

    def read(self, text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[ToolCall]:
        """The calls in what is between the markers; none where it is not made of calls of these functions alone."""
        value = parsed(text)
        given = value if isinstance(value, list) else [value]
        known = [call for one in given if (call := self._call(one, tools)) is not None]
        return known if len(known) == len(given) else []

    def reader(self, tools: Sequence[Mapping[str, Any]]) -> AnswerReader:
        """A reader of one answer, which may call these functions."""
        kind = MarkedCallReader if self.end else WholeCallReader
        return kind(self, {tool["name"]: tool for tool in tools})

    def _call(self, value: Any, tools: Mapping[str, Any]) -> ToolCall | None:
        if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in tools:
            return None
        arguments = value.get(self.arguments, value.get("arguments", value.get("parameters", {})))
        arguments = parsed(arguments or "{}") if isinstance(arguments, str) else arguments
        return ToolCall.of(name, arguments) if isinstance(arguments, dict) else None


def parsed(text: str) -> Any:
    """The value of a text in JSON, whose numbers are finite; None where it is none."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


HERMES = ToolForm("<tool_call>\n", "\n</tool_call>")
MISTRAL = ToolForm("[TOOL_CALLS]", "", is_list=True)
LLAMA = ToolForm("", "", "parameters")
GENERIC = ToolForm("", "")
ANY_OBJECT = {"type": "object"}


def parameters_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, strict; raises ModelError where a keyword would be held in part."""
    try:
        return strict_schema(tool.get("parameters") or ANY_OBJECT, f"{tool['name']}: #")
    except RecursionError as error:
        raise ModelError(f"{tool['name']}: nested too deep; a flatter schema is required. Change it.") from error


def json_in_grammar(schema: Mapping[str, Any]) -> str:
    """A JSON Schema as the right side of a rule in Lark."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_STYLE})


def calls_or_json(calls: str, schema: Mapping[str, Any]) -> str:
    """A grammar in Lark of an answer that calls functions, by the grammar of `calls`, or fits a JSON Schema.

    Raises:
        ModelError: the schema has a keyword that would be held in part.
    """
    answer = f"answer: {json_in_grammar(strict_schema(dict(schema)))}\n"
    if not calls:
        return answer.replace("answer:", "start:", 1)
    return f"start: calls | answer\n{answer}{calls.replace('start:', 'calls:', 1)}"


def marker_in_grammar(text: str, tokenizer: Tokenizer) -> str:
    """A marker in a grammar: its text, or its token and the line breaks beside it."""
    bare = text.strip("\n")
    token = tokenizer.special_token_id(bare) if bare else None
    if token is None:
        return f" {json.dumps(text)} " if text else ""
    before, _, after = (json.dumps(part) if part else "" for part in text.partition(bare))
    return f" {before} <[{token}]> {after} "


def with_instructions(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages for a chat template that knows of no functions.

    A system message names the functions, if any, calls are the text that they were, and results are a user's messages.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        turn = dict(message)
        for call in turn.pop("tool_calls", ()):
            turn["content"] += json.dumps(call["function"])
        turn.pop("tool_call_id", None)
        if turn["role"] == "tool":
            turn |= {"role": "user", "content": f"The function gave: {turn['content']}"}
        turns.append(turn)
    if not tools:
        return turns
    text = instructions(tools)
    if turns[0]["role"] == "system":
        turns[0]["content"] += "\n\n" + text
    else:
        turns.insert(0, {"role": "system", "content": text})
    return turns


def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The text of that system message."""
    described = "\n".join(json.dumps({"type": "function", "function": dict(tool)}) for tool in tools)
    return (
        f"You can call these functions:\n{described}\n"
        'To call one, answer with a JSON object alone: {"name": its name, "arguments": an object of its arguments}.'
    )


class CallReader(AnswerReader):
    """The common part of readers of calls of known functions."""

    def __init__(self, form: ToolForm, tools: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self._form = form
        self._tools = tools
        self._begin, self._end = form.begin.strip(), form.end.strip()

    def _read(self, text: str) -> bool:
        """Whether a text consists of calls of known functions, which are kept then."""
        found = self._form.read(text, self._tools)
        if len(self.calls) + len(found) > MOST_CALLS:
            return False
        self.calls += found
        return bool(found)


class WholeCallReader(CallReader):
    """Reads an answer that consists of calls, or is text."""

    _is_text = False  # as what was released says

    def feed(self, text: str) -> str:
        self._held += text
        rest = self._held.lstrip()
        begins = bool(self._begin) and self._begin.startswith(rest[: len(self._begin)])
        may_be_calls = not rest or rest.startswith(("{", "[")) or begins
        self._is_text |= not may_be_calls
        return self._release(len(self._held)) if self._is_text else ""

    def finish(self) -> str:
        is_call = not self._is_text and self._read(self._held.strip().removeprefix(self._begin))
        return "" if is_call else self._release(len(self._held))


class MarkedCallReader(CallReader):
    """Reads calls between markers; what turns out to be no call of a known function is text."""

    def feed(self, text: str) -> str:
        self._held += text
        said = ""
        while (at := self._held.find(self._begin)) >= 0:
            between = self._release(at)
            said += between if between.strip() or not self.calls else ""
            stop = self._held.find(self._end)
            if stop < 0:
                return said
            is_call = self._read(self._held[len(self._begin) : stop])
            piece = self._release(stop + len(self._end))
            said += "" if is_call else piece
        certain = len(self._held) - overlap(self._held, self._begin)
        is_between = bool(self.calls) and not self._held[:certain].strip()  # or after the last one
        return said if is_between else said + self._release(certain)

    def finish(self) -> str:
        rest = self._held.strip()
        is_call = rest.startswith(self._begin) and self._read(rest.removeprefix(self._begin))  # it may lack its end
        return "" if is_call or (self.calls and not rest) else self._release(len(self._held))


def overlap(text: str, marker: str) -> int:
    """Characters at the end of a text with which a marker begins."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)
