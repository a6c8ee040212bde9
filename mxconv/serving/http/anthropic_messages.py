"""Anthropic's /v1/messages: its bodies as chats, and answers as messages of blocks.

Fields that would change nothing are accepted and ignored, as in bodies.py; limits are those of chats. `seed` is not
Anthropic's.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.bodies import Body
from mxconv.serving.http.call import Call, ReplyToken
from mxconv.serving.http.item_shape import Events, ItemShape, TextFormat, job_of
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import new_id
from mxconv.text.tool_calls import ToolCall

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
NAMES = {"response_format": "output_config.format", "stop": "stop_sequences"}  # by those of chats
SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream", "seed")  # as chats name them
FOREIGN = {"user": "tool_use", "assistant": "tool_result"}


class CacheableBody(Body):
    """What a client may want cached, which changes no token."""

    cache_control: dict[str, Any] | None = None


class TextBlock(CacheableBody):
    type: Literal["text"]
    text: str
    citations: Any = None


class ToolUseBlock(CacheableBody):
    """A call in a message that an assistant wrote."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None

    @property
    def call(self) -> dict[str, Any]:
        return {"id": self.id, "function": {"name": self.name, "arguments": json.dumps(self.input)}}


class ToolResultBlock(CacheableBody):
    """What a function gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = Field(None, description="The model then reads `Error: ` before the content.")

    @property
    def message(self) -> dict[str, Any]:
        text = ("Error: " if self.is_error else "") + _joined(self.content or "")
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}


class Turn(Body):
    """A message; what functions gave comes first in it, whatever its place."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]]

    @model_validator(mode="after")
    def _has_its_blocks(self) -> Self:
        blocks = [] if isinstance(self.content, str) else self.content
        if any(block.type != "text" and block.type == FOREIGN.get(self.role, block.type) for block in blocks):
            raise PydanticCustomError("value_error", "tool_use belongs to the assistant, tool_result to the user")
        return self

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The same as chats have it."""
        blocks = [] if isinstance(self.content, str) else self.content
        results = [block.message for block in blocks if isinstance(block, ToolResultBlock)]
        calls = [block.call for block in blocks if isinstance(block, ToolUseBlock)]
        text = _joined(self.content)
        rest = {"role": self.role, "content": text, "tool_calls": calls or None}
        return results if results and not text else [*results, rest]


class ClientTool(CacheableBody):
    """A function; `strict` changes nothing: where calls are demanded, schemas always hold."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None

    @property
    def plain(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(Body):
    """Whether the model has to call a function; `disable_parallel_tool_use` limits calls that it has to make."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Of the type tool.")
    disable_parallel_tool_use: bool | None = None

    @property
    def plain(self) -> Any:
        return CHOICES.get(self.type, {"type": "function", "function": {"name": self.name}})


class OutputConfig(Body):
    format: TextFormat | None = None
    effort: str | None = None  # of thinking


def _ends_open(turns: list[Turn]) -> list[Turn]:
    if turns[-1].role == "assistant":
        raise PydanticCustomError("value_error", "the last is an assistant's, which no answer continues; add a user's")
    return turns


class CountBody(CacheableBody):
    """POST /v1/messages/count_tokens: what a model reads."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1), AfterValidator(_ends_open)]
    system: str | list[TextBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = Field(None, description="Changes nothing: a model thinks as it was trained to.")
    context_management: dict[str, Any] | None = Field(None, description="Changes nothing.")
    output_config: OutputConfig | None = None

    @property
    def chat(self) -> dict[str, Any]:
        """Members of the same request as a chat."""
        system = [] if self.system is None else [{"role": "system", "content": _joined(self.system)}]
        choice, form = self.tool_choice, self.output_config and self.output_config.format
        return {
            "model": self.model,
            "messages": [*system, *(message for turn in self.messages for message in turn.messages)],
            "tools": [tool.plain for tool in self.tools or ()],
            "tool_choice": choice and choice.plain,
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "response_format": form and form.plain,
        }

    def job(self, served: ServedModel) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        return job_of(self.chat, served, NAMES)


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = Field(None, description="With one, the answer depends on the request alone.")
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def chat(self) -> dict[str, Any]:
        return super().chat | {"stop": self.stop_sequences} | {name: getattr(self, name) for name in SAME}


class MessagesShape(ItemShape):
    """The shape of /v1/messages."""

    prefix = "msg"

    def __init__(self, body: MessagesBody, served: ServedModel, call: Call) -> None:
        super().__init__(served, call)
        self._stops = body.stop_sequences or []

    def answer(self) -> dict[str, Any]:
        about = {"type": "message", "role": "assistant", "content": self._items, "mxconv": self._about}
        return {**self._head, **about, **self._ending, "usage": self._usage}

    def opening(self) -> Events:
        yield {"type": "message_start", "message": self.answer() | {"stop_reason": None, "stop_sequence": None}}

    def closing(self) -> Events:
        yield from self.close_text()
        yield {"type": "message_delta", "delta": self._ending, "usage": self._usage}
        yield {"type": "message_stop"}

    def failure(self, error: ApiError) -> dict[str, Any]:
        return error.anthropic_body

    def begin_text(self) -> Events:
        self._items.append({"type": "text", "text": ""})
        yield self._event("start", content_block=self._items[-1])

    def add_text(self, text: str, tokens: list[ReplyToken]) -> Events:
        self._items[-1]["text"] += text
        yield self._event("delta", delta={"type": "text_delta", "text": text})

    def end_text(self) -> Events:
        yield self._event("stop")

    def add_call(self, call: ToolCall) -> Events:
        block = {"type": "tool_use", "id": new_id("toolu"), "name": call.name}
        self._items.append({**block, "input": json.loads(call.arguments)})
        yield self._event("start", content_block={**block, "input": {}})
        yield self._event("delta", delta={"type": "input_json_delta", "partial_json": call.arguments})
        yield self._event("stop")

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        """An event about the last block."""
        return {"type": f"content_block_{kind}", "index": len(self._items) - 1, **members}

    @property
    def _ending(self) -> dict[str, str | None]:
        """Why it ended; a stop string that the client did not name is the model's own end."""
        stop = self._choice.stop_string
        if stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = "tool_use" if self._num_calls else "end_turn"
        return {
            "stop_reason": "max_tokens" if self._choice.finish_reason == "length" else reason,
            "stop_sequence": None,
        }

    @property
    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._call.num_prompt_tokens, "output_tokens": self._call.num_new_tokens}


def _joined(given: str | list[Any]) -> str:
    """A text, or those of blocks of text."""
    return given if isinstance(given, str) else "".join(block.text for block in given if block.type == "text")
