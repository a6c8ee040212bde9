"""Anthropic's /v1/messages: its bodies as chats, and answers as messages of blocks.

Fields that would change nothing are accepted and ignored, as in bodies.py; limits are those of chats. `seed` is not
Anthropic's.
"""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.bodies import IGNORED, DraftOptions
from mxconv.serving.http.call import Call
from mxconv.serving.http.history import Body, Content, Neutral, Note
from mxconv.serving.http.item_shape import Events, ItemShape, TextFormat, job_of
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import Kind, Piece, new_id
from mxconv.text.tool_calls import ToolCall

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
NAMES = {"response_format": "output_config.format", "stop": "stop_sequences"}  # by those of chats
SAME = ("max_tokens", "temperature", "top_p", "top_k", "stream", "seed")  # as chats name them
BLOCKS: dict[Kind, dict[str, str]] = {  # of answers
    "text": {"type": "text", "text": ""},
    "thought": {"type": "thinking", "thinking": "", "signature": ""},
}
FOREIGN = {"user": "tool_use", "assistant": "tool_result"}
KNOWN = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")  # blocks
IGNORED_HERE = IGNORED | {
    *("container", "inference_geo", "speed", "diagnostics", "user_profile_id", "workspace_id", "context_management"),
    *("betas", "anthropic_version"),
}


class Block(Note):
    """A text, a call that an assistant wrote, what a function gave, what an assistant thought, or another of its."""

    kinds = KNOWN
    type: str
    text: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | str = Field({}, description="Of a call.")
    tool_use_id: str | None = None
    content: Content | None = Field(None, description="Of what a function gave.")
    is_error: bool | None = Field(None, description="The model then reads `Error: ` before the content.")
    thinking: str = ""

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if self.type == "tool_use" and not self.name:
            raise PydanticCustomError("missing", "", {"members": ("name",)})
        return self

    @property
    def call(self) -> dict[str, Any]:
        return {"id": self.id, "function": {"name": self.name, "arguments": self.input}}

    @property
    def result(self) -> dict[str, Any]:
        text = ("Error: " if self.is_error else "") + (self.content or "")
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}


class Turn(Note):
    """A message; what functions gave comes first in it, whatever its place."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] = ""

    @model_validator(mode="after")
    def _has_its_blocks(self) -> Self:
        if not self.content and self.role == "user" and "content" not in self.model_fields_set:
            raise PydanticCustomError("missing", "", {"members": ("content",)})
        if self._of(FOREIGN.get(self.role, "")):
            raise PydanticCustomError("value_error", "tool_use belongs to the assistant, tool_result to the user")
        for number, block in enumerate(self._blocks):
            if block.type not in KNOWN and self.role != "assistant":
                message = "a block of the type {found}; this server reads text. Send blocks of the type text"
                found = {"found": repr(block.type[:40]), "members": ("content", number)}
                raise PydanticCustomError("value_error", message, found)
        return self

    @property
    def _blocks(self) -> list[Block]:
        return [] if isinstance(self.content, str) else self.content

    def _of(self, kind: str) -> list[Block]:
        return [block for block in self._blocks if block.type == kind]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The same as chats have it."""
        text = self.content if isinstance(self.content, str) else "".join(block.text for block in self._of("text"))
        results = [block.result for block in self._of("tool_result")]
        thought = "".join(block.thinking for block in self._of("thinking"))
        rest = {
            "role": self.role,
            "content": text,
            "tool_calls": [block.call for block in self._of("tool_use")] or None,
        }
        return results if results and not text else [*results, rest | {"reasoning_content": thought or None}]


class ClientTool(Note):
    """A function, or a tool of Anthropic's own."""

    type: str = "custom"
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_a_schema(self) -> Self:
        for member in ("name", "input_schema"):
            if self.type == "custom" and getattr(self, member) is None:
                raise PydanticCustomError("missing", "", {"members": (member,)})
        return self

    @property
    def plain(self) -> dict[str, Any]:
        if self.type != "custom":
            return {"type": self.type}
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoice(Note):
    """The choice whether the model has to call a function; `disable_parallel_tool_use` limits demanded calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Of the type tool.")
    disable_parallel_tool_use: bool | None = None

    @property
    def plain(self) -> Any:
        return CHOICES.get(self.type, {"type": "function", "function": {"name": self.name}})


class OutputConfig(Note):
    format: TextFormat | None = None
    effort: str | None = None  # of thinking


class CountBody(Body):
    """POST /v1/messages/count_tokens: what a model reads."""

    ignored = IGNORED_HERE
    neutral: ClassVar[Neutral] = {"mcp_servers": ([],)}
    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Content | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = Field(None, description="`type` disabled or another one, for the chat template.")
    output_format: TextFormat | None = Field(None, description="The older name of `format` in `output_config`.")
    output_config: OutputConfig | None = None

    @property
    def chat(self) -> dict[str, Any]:
        """Members of the same request as a chat."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        choice, config = self.tool_choice, self.output_config or OutputConfig()
        form = config.format or self.output_format
        return {
            "model": self.model,
            "messages": [*system, *(message for turn in self.messages for message in turn.messages)],
            "tools": [tool.plain for tool in self.tools or ()],
            "tool_choice": choice and choice.plain,
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "response_format": form and form.plain,
            "thinking": self.thinking,
            "reasoning_effort": config.effort,
        }

    def job(self, served: ServedModel) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        return job_of(self.chat, served, NAMES)


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = Field(None, description="With one, the answer depends on the request alone.")
    mxconv: DraftOptions | None = None

    @property
    def chat(self) -> dict[str, Any]:
        own = {"stop": self.stop_sequences, "mxconv": self.mxconv and self.mxconv.model_dump()}
        return super().chat | own | {name: getattr(self, name) for name in SAME}


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
        yield from self.close_item()
        yield {"type": "message_delta", "delta": self._ending, "usage": self._usage}
        yield {"type": "message_stop"}

    def failure(self, error: ApiError) -> dict[str, Any]:
        return error.anthropic_body

    def begin(self, kind: Kind) -> Events:
        self._items.append(dict(BLOCKS[kind]))
        yield self._event("start", content_block=self._items[-1])

    def add(self, piece: Piece) -> Events:
        block = self._items[-1]
        name = block["type"]
        block[name] += piece.text
        yield self._event("delta", delta={"type": f"{name}_delta", name: piece.text})

    def end(self, kind: Kind) -> Events:
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
        reason = "tool_use" if self._pieces.num_calls else "end_turn"
        return {
            "stop_reason": "max_tokens" if self._choice.finish_reason == "length" else reason,
            "stop_sequence": None,
        }

    @property
    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._call.num_prompt_tokens, "output_tokens": self._call.num_new_tokens}
