"""OpenAI's /v1/responses: its bodies as chats, and answers as lists of items.

Nothing is stored: a request says the whole conversation. Fields that would change nothing are accepted and ignored, as
in bodies.py; limits are those of chats. `seed` is not OpenAI's here.
"""

import time
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.bodies import IGNORED, DraftOptions, StreamOptions
from mxconv.serving.http.call import Call
from mxconv.serving.http.history import Body, Content, Neutral, Note
from mxconv.serving.http.item_shape import Events, ItemShape, TextFormat, job_of
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import Kind, Piece, new_id
from mxconv.text.tool_calls import ToolCall

LOGPROBS = "message.output_text.logprobs"
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}  # by those of chats
SAME = ("model", "temperature", "top_p", "seed", "stream", "top_logprobs", "parallel_tool_calls",
        "reasoning", "reasoning_effort", "chat_template_kwargs")  # fmt: skip  # as chats name them
ECHOED: dict[str, Any] = {  # fields that an answer repeats, and what it says where they are left out
    **{"instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "text": None},
    **{"tools": [], "tool_choice": "auto", "top_logprobs": None},
}


ITEMS: dict[Kind, tuple[dict[str, Any], dict[str, Any]]] = {  # of answers, and their parts
    "text": ({"prefix": "msg", "type": "message", "role": "assistant"}, {"type": "output_text", "text": ""}),
    "thought": ({"prefix": "rs", "type": "reasoning", "summary": []}, {"type": "reasoning_text", "text": ""}),
}
LISTS: dict[Kind, tuple[str, ...]] = {"text": ("annotations", "logprobs"), "thought": ()}  # of the parts


class InputItem(Note):
    """A message, a call that an assistant wrote, what a function gave, or what an assistant thought."""

    kinds = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = Field(None, description="Of messages.")
    content: Content | None = Field(None, description="Of messages, and of thoughts.")
    summary: Content | None = Field(None, description="Of thoughts.")
    call_id: str | None = Field(None, description="Of calls and what they gave.")
    name: str | None = Field(None, description="Of calls.")
    arguments: str | dict[str, Any] = Field("", description="Of calls.")
    output: Content | None = Field(None, description="Of what functions gave.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        required = {"message": ("role",), "function_call": ("name",)}.get(self.type, ())
        if member := next((name for name in required if getattr(self, name) is None), None):
            raise PydanticCustomError("missing", "", {"members": (member,)})
        if self.type == "item_reference":
            message = "a reference; nothing is stored here. Send the item itself"
            raise PydanticCustomError("value_error", message)
        return self


class FlatTool(Note):
    """A function, or a tool of another kind."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # which answers repeat

    @property
    def plain(self) -> dict[str, Any]:
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": self.type} | ({"function": function} if self.type == "function" else {})


class FlatChoice(Note):
    type: Literal["function"]
    name: str


class TextConfig(Note):
    format: TextFormat = TextFormat()


class ResponsesBody(Body):
    """POST /v1/responses."""

    ignored = (IGNORED - {"metadata"}) | {
        "max_tool_calls",
        "context_management",
        "background_options",
        "access_programs",
    }
    neutral: ClassVar[Neutral] = {
        **{"previous_response_id": (), "conversation": (), "prompt": (), "truncation": ("disabled",)},
        **{"background": (False,)},
    }
    model: str | None = None
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = Field(None, description="A system message before the others.")
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = Field(None, description="Names of what there is here; others add nothing.")
    seed: int | None = Field(None, description="With one, the answer depends on the request alone.")
    stream: bool | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig = TextConfig()
    reasoning: dict[str, Any] | None = Field(None, description="`effort`, for the chat template; `summary` is ignored.")
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = None
    mxconv: DraftOptions | None = None

    @property
    def chat(self) -> dict[str, Any]:
        """Members of the same request as a chat."""
        choice = self.tool_choice
        named = {"type": "function", "function": {"name": choice.name}} if isinstance(choice, FlatChoice) else None
        return {name: getattr(self, name) for name in SAME} | {
            "messages": self._messages,
            "max_tokens": self.max_output_tokens,
            "logprobs": self.top_logprobs is not None or LOGPROBS in (self.include or ()),
            "tools": [tool.plain for tool in self.tools or ()],
            "tool_choice": named or choice,
            "response_format": self.text.format.plain,
            "mxconv": self.mxconv and self.mxconv.model_dump(),
        }

    @property
    def _messages(self) -> list[dict[str, Any]]:
        """Messages of a chat; calls belong to the assistant's message before them."""
        found: list[dict[str, Any]] = []
        if self.instructions is not None:
            found.append({"role": "system", "content": self.instructions})
        for item in [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input:
            if item.type == "function_call_output":
                found.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
            elif item.type == "reasoning" and (thought := item.content or item.summary):
                found.append({"role": "assistant", "content": "", "reasoning_content": thought})
            elif item.type == "message" and item.role == "assistant" and found and "reasoning_content" in found[-1]:
                found[-1]["content"] += item.content or ""
            elif item.type == "message":
                found.append({"role": item.role, "content": item.content})
            elif item.type == "function_call":
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""})
                function = {"name": item.name, "arguments": item.arguments}
                found[-1].setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
        return found

    def job(self, served: ServedModel) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        return job_of(self.chat, served, NAMES)


class ResponsesShape(ItemShape):
    """The shape of /v1/responses."""

    prefix = "resp"

    def __init__(self, body: ResponsesBody, served: ServedModel, call: Call) -> None:
        super().__init__(served, call)
        sent = body.model_dump(by_alias=True)
        self._head |= {"object": "response", "created_at": int(time.time()), "error": None, "mxconv": self._about}
        self._head |= {name: neutral if sent[name] is None else sent[name] for name, neutral in ECHOED.items()}
        self._head |= {name: call.job.sampling.values[name] for name in ("temperature", "top_p")}
        self._head |= {"truncation": "disabled", "store": False, "previous_response_id": None}
        self._status = "in_progress"
        self._num_events = 0

    def answer(self) -> dict[str, Any]:
        reason = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        usage = None if self._status == "in_progress" else self._usage
        about = {"status": self._status, "incomplete_details": reason, "output": self._items, "usage": usage}
        return {**self._head, **about}

    def opening(self) -> Events:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.answer())

    def closing(self) -> Events:
        self._status = "incomplete" if self._choice.finish_reason == "length" else "completed"
        yield from self.close_item()
        yield self._event(f"response.{self._status}", response=self.answer())

    def failure(self, error: ApiError) -> dict[str, Any]:
        """OpenAI's error event, with the error object that its clients raise."""
        return {**error.body["error"], **self._event("error"), **error.body}

    def begin(self, kind: Kind) -> Events:
        item, part = ITEMS[kind]
        yield self._begun(**item, content=[])
        self._items[-1]["content"] = [part | {name: [] for name in LISTS[kind]}]
        yield self._of_part("response.content_part.added", part=self._part)

    def add(self, piece: Piece) -> Events:
        members: dict[str, Any] = {"delta": piece.text}
        self._part["text"] += piece.text
        if piece.kind == "text":
            members["logprobs"] = [_logprobs(token.logprobs) for token in piece.tokens if token.logprobs]
            self._part["logprobs"] += members["logprobs"]
        yield self._of_part(f"response.{self._part['type']}.delta", **members)

    def end(self, kind: Kind) -> Events:
        part, is_cut = self._part, kind == "text" and self._status == "incomplete"
        members = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._of_part(f"response.{part['type']}.done", **members)
        yield self._of_part("response.content_part.done", part=part)
        yield self._ended("incomplete" if is_cut else "completed")

    def add_call(self, call: ToolCall) -> Events:
        yield self._begun("fc", "function_call", call_id=new_id("call"), name=call.name, arguments="")
        item = self._items[-1]
        for kind, members in (("delta", {"delta": call.arguments}), ("done", {"arguments": call.arguments})):
            yield self._of_item(f"response.function_call_arguments.{kind}", item_id=item["id"], **members)
        item["arguments"] = call.arguments
        yield self._ended("completed")

    @property
    def _usage(self) -> dict[str, Any]:
        prompt, new = self._call.num_prompt_tokens, self._call.num_new_tokens
        return {
            **{"input_tokens": prompt, "output_tokens": new, "total_tokens": prompt + new},
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }

    @property
    def _part(self) -> Any:
        """The text of the last item."""
        return self._items[-1]["content"][0]

    def _begun(self, prefix: str, type: str, **members: Any) -> dict[str, Any]:
        self._items.append({"id": new_id(prefix), "type": type, "status": "in_progress", **members})
        return self._of_item("response.output_item.added", item=self._items[-1])

    def _ended(self, status: str) -> dict[str, Any]:
        self._items[-1]["status"] = status
        return self._of_item("response.output_item.done", item=self._items[-1])

    def _of_part(self, kind: str, **members: Any) -> dict[str, Any]:
        return self._of_item(kind, item_id=self._items[-1]["id"], content_index=0, **members)

    def _of_item(self, kind: str, **members: Any) -> dict[str, Any]:
        return self._event(kind, output_index=len(self._items) - 1, **members)

    def _event(self, kind: str, **members: Any) -> dict[str, Any]:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **members}


def _logprobs(entry: dict[str, Any]) -> dict[str, Any]:
    """A token's logprobs, where bytes are always a list."""
    top = [other | {"bytes": other["bytes"] or []} for other in entry["top_logprobs"]]
    return entry | {"bytes": entry["bytes"] or [], "top_logprobs": top}
