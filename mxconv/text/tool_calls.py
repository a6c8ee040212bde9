"""Calls of functions in a model's text: the form that its chat template teaches it, read and demanded.

Forms, by the marker that stands in the template:
    <tool_call>      an object with `name` and `arguments` between tags, any number of them (Hermes, Qwen)
    [TOOL_CALLS]     a list of such objects (Mistral)
    <|python_tag|>   an object with `name` and `parameters`, alone (Llama 3)
    none             an object with `name` and `arguments`, alone
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mxconv.text.constraint import JSON_STYLE
from mxconv.text.tokenizer import Tokenizer

MOST_CALLS = 64  # of an answer


@dataclass(frozen=True)
class ToolCall:
    """A call as a model wrote it."""

    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True)
class ToolForm:
    """How a model writes calls."""

    begin: str  # before each call, or before a list of them; empty for nothing
    end: str  # after each
    arguments: str  # the key of a call's arguments
    is_list: bool = False

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        """A grammar in Lark of an answer that calls some functions, by their JSON Schemas, and says nothing else.

        Args:
            tools: `name` and perhaps `parameters`, a JSON Schema, of each.
            may_be_several: whether there may be more than one call.
            tokenizer: of the model, some of whose markers are tokens without a text.
        """
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool["name"]}, self.arguments: tool.get("parameters") or ANY_OBJECT},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        call: dict[str, Any] = {"anyOf": calls} if len(calls) > 1 else calls[0]
        if self.is_list:
            call = {"type": "array", "items": call, "minItems": 1, "maxItems": MOST_CALLS if may_be_several else 1}
        begin, end = (_marker(part, tokenizer) for part in (self.begin, self.end))
        several = ' ("\\n" call)*' if may_be_several and self.end else ""
        schema = json.dumps(call | {"x-guidance": JSON_STYLE})
        return f"start: call{several}\ncall: {begin}json{end}\njson: %json {schema}\n"

    def as_decoded(self, tokenizer: Tokenizer) -> "ToolForm":
        """The same as a client sees it: special tokens have no text."""
        is_silent = tokenizer.special_token_id(self.begin.strip()) is not None
        return replace(self, begin="", end="") if is_silent else self

    def reader(self, names: Sequence[str]) -> "CallReader":
        """A reader of one answer, which may call functions of these names."""
        return CallReader(self, frozenset(names))


HERMES = ToolForm("<tool_call>\n", "\n</tool_call>", "arguments")
MISTRAL = ToolForm("[TOOL_CALLS]", "", "arguments", is_list=True)
LLAMA = ToolForm("", "", "parameters")
GENERIC = ToolForm("", "", "arguments")
ANY_OBJECT = {"type": "object"}


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """A marker in a grammar: its text, or its token and the line breaks beside it."""
    bare = text.strip("\n")
    token = tokenizer.special_token_id(bare) if bare else None
    if token is None:
        return f" {json.dumps(text)} " if text else ""
    before, _, after = (json.dumps(part) if part else "" for part in text.partition(bare))
    return f" {before} <[{token}]> {after} "


def form_of(template: str) -> ToolForm:
    """The form that a chat template, the source of it, teaches."""
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    return LLAMA if "<|python_tag|>" in template or '"parameters"' in template else GENERIC


def with_instructions(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Messages for a chat template that knows of no functions.

    A system message says what there is, calls are the text that they were, and what functions gave is a user's.
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
    told = instructions(tools)
    if turns[0]["role"] == "system":
        turns[0]["content"] += "\n\n" + told
    else:
        turns.insert(0, {"role": "system", "content": told})
    return turns


def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """What that system message says."""
    described = "\n".join(json.dumps({"type": "function", "function": dict(tool)}) for tool in tools)
    return (
        f"You can call these functions:\n{described}\n"
        'To call one, answer with a JSON object alone: {"name": its name, "arguments": an object of its arguments}.'
    )


class CallReader:
    """Takes an answer apart, piece by piece, into text and calls.

    What cannot yet be told apart is held back; what turns out to be no call of a known function is text.
    """

    def __init__(self, form: ToolForm, names: frozenset[str]) -> None:
        self._form = form
        self._names = names
        self._held = ""
        self.calls: list[ToolCall] = []

    def feed(self, text: str) -> str:
        """Go on with a piece; returns what is text for certain."""
        self._held += text
        if not self._form.end:  # calls are the whole answer
            start = self._held.lstrip().removeprefix(self._form.begin).lstrip()[:1]
            return "" if not start or start in "{[" else self._release(len(self._held))
        said = ""
        while True:
            begin, end = self._form.begin.strip(), self._form.end.strip()
            at = self._held.find(begin)
            if at < 0:
                certain = len(self._held) - _overlap(self._held, begin)
                is_between = bool(self.calls) and not self._held[:certain].strip()  # or after the last one
                return said if is_between else said + self._release(certain)
            between = self._release(at)
            said += between if between.strip() or not self.calls else ""
            stop = self._held.find(end)
            if stop < 0:
                return said
            found = self._parsed(self._held[len(begin) : stop])
            if found:
                self.calls += found
                self._held = self._held[stop + len(end) :]
            else:
                said += self._release(stop + len(end))

    def finish(self) -> str:
        """The answer has ended: what is left is text, or a call."""
        if not self._form.end:
            self.calls += self._parsed(self._held.strip().removeprefix(self._form.begin))
        is_over = bool(self.calls) and (not self._form.end or not self._held.strip())
        return self._release(0 if is_over else len(self._held))

    def _release(self, count: int) -> str:
        said, self._held = self._held[:count], self._held[count:]
        return said

    def _parsed(self, text: str) -> list[ToolCall]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return []
        given = value if isinstance(value, list) else [value]
        calls = [self._call(one) for one in given[: MOST_CALLS - len(self.calls)]]
        known = [call for call in calls if call is not None]
        return known if known and len(known) == len(given) else []

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or value.get("name") not in self._names:
            return None
        arguments = value.get(self._form.arguments, value.get("arguments", value.get("parameters", {})))
        return (
            ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
        )


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of a text with which a marker begins."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)
