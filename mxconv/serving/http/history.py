"""Requests' common ground, and what clients send back or along: earlier messages, calls, tools, notes.

A request's own fields are checked to the letter, since a typo of one would change the answer in silence (`Body`).
History and decoration come out of other programs, which add members of their own: what no template reads is ignored
(`Note`). A null asks for nothing anywhere.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from mxconv.text.tool_calls import parsed

TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")  # kinds of parts
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")  # parts that earlier answers have, and no template reads
Neutral = Mapping[str, tuple[Any, ...]]
NOTHING = ("", "null")  # what a call without arguments comes back as


class Body(BaseModel):
    """A JSON object without unknown fields; texts are not numbers, nor numbers texts, but 4.0 is 4.

    Attributes:
        aliases: other servers' names of fields.
        ignored: fields that change no token.
        neutral: fields that would, each with the values that ask for nothing.
        kinds: values of `type`; of an object of another kind nothing else is read. Empty for all.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    aliases: ClassVar[Mapping[str, str]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Neutral] = {}
    kinds: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _what_is_asked_for(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if cls.kinds and (kind := given.get("type")) is not None and kind not in cls.kinds:
            return {"type": kind}
        kept: dict[str, Any] = {}
        for name, value in given.items():
            if value is None or name in cls.ignored:
                continue
            if name in cls.neutral:
                if value in cls.neutral[name]:
                    continue
                allowed = " or ".join(json.dumps(each) for each in (*cls.neutral[name], None))
                raise PydanticCustomError(
                    "unsupported_parameter",
                    "not supported; leave it out, or send {allowed}",
                    {"members": (name,), "allowed": allowed},
                )
            is_whole = isinstance(value, float) and value.is_integer()
            kept.setdefault(cls.aliases.get(name, name), int(value) if is_whole else value)
        return kept


class Note(Body):
    """A JSON object of which members that are unknown here are ignored."""

    model_config = ConfigDict(extra="ignore")


def text_of_parts(given: Any) -> Any:
    """The text of a message's content: a text, or parts whose texts are joined; what is neither is left as it is."""
    if not isinstance(given, list):
        return given
    texts = []
    for number, part in enumerate(given):
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part if not isinstance(part, Mapping) else part.get("refusal" if kind == "refusal" else "text") or ""
        if kind in THOUGHTS:
            continue
        if kind not in TEXTS or not isinstance(text, str):
            found = f"a part of the type {str(kind)[:40]!r}" if kind not in TEXTS else "a part without a text"
            message = "{found}; this server reads text. Send parts of the type text"
            raise PydanticCustomError("value_error", message, {"members": (number,), "found": found})
        texts.append(text)
    return "".join(texts)


PARTS = {"type": "array", "items": {"type": "object", "properties": {"type": {"const": "text"}, "text": {}}}}
Content = Annotated[str, BeforeValidator(text_of_parts), WithJsonSchema({"anyOf": [{"type": "string"}, PARTS]})]


class CalledFunction(Note):
    name: str
    arguments: str | dict[str, Any] = Field("", description="A JSON object, or the text of one; empty for none.")

    @property
    def plain(self) -> dict[str, Any]:
        """Name and arguments, as an object where they are one: templates write it in their own way."""
        value: Any = self.arguments
        for _ in range(2):  # some clients encode twice
            if isinstance(value, str):
                value = {} if value.strip() in NOTHING else parsed(value)
        return {"name": self.name, "arguments": value if isinstance(value, dict) else self.arguments}


class WrittenCall(Note):
    """A call in a message that an assistant wrote; without a function it is another kind's, and is left out."""

    id: str | None = None
    function: CalledFunction | None = None


class Message(Note):
    """A turn. `developer` is what templates call system, and `function` the older name of `tool`."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = Field(None, description="What an assistant said in place of a content.")
    reasoning_content: str | None = Field(None, description="What an assistant thought, where its template knows it.")
    reasoning: Any = Field(None, description="The same as vLLM and OpenRouter name it.")
    tool_calls: list[WrittenCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = Field(None, description="Of the role tool: the call that this answers.")

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role not in ("assistant", "tool", "function"):
            raise PydanticCustomError("missing", "", {"members": ("content",)})
        return self

    @property
    def plain(self) -> dict[str, Any]:
        """The same with the members that templates read."""
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        found: dict[str, Any] = {"role": role, "content": self.content or self.refusal or ""}
        thought = self.reasoning_content or self.reasoning
        members = {"name": self.name, "tool_call_id": self.tool_call_id}
        if isinstance(thought, str) and thought:
            members["reasoning_content"] = thought
        functions = [(call.id, call.function) for call in self.tool_calls or () if call.function is not None]
        if self.function_call is not None:
            functions.append((None, self.function_call))
        if functions:
            found["tool_calls"] = [
                {"id": name or f"call_{place}", "type": "function", "function": function.plain}
                for place, (name, function) in enumerate(functions)
            ]
        return found | {name: value for name, value in members.items() if value is not None}


class Function(Note):
    """A function that the model may call; `strict` changes nothing: where calls are demanded, schemas always hold."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None

    @property
    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class Tool(Note):
    """A function, or a tool of another kind, which nobody here could run."""

    type: str = "function"
    function: Function | None = None

    @model_validator(mode="after")
    def _has_a_function(self) -> Self:
        if self.type == "function" and self.function is None:
            raise PydanticCustomError("missing", "", {"members": ("function",)})
        return self


class FunctionName(Note):
    name: str


class NamedTool(Note):
    type: Literal["function"]
    function: FunctionName
