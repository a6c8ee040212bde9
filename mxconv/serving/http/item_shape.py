"""Dialects whose answers are lists of thoughts, texts and calls: /v1/responses and /v1/messages.

Their requests become chats. A whole answer is what the events of its stream add up to, so that both say the same.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from pydantic import Field, ValidationError

from mxconv.serving.http.api_error import ApiError, not_validated
from mxconv.serving.http.bodies import ChatBody
from mxconv.serving.http.call import Call, ReplyChoice
from mxconv.serving.http.engine_thread import ReplyToken
from mxconv.serving.http.history import Note
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import AnswerPieces, Kind, Piece, new_id
from mxconv.text.tool_calls import ToolCall

Events = Iterator[dict[str, Any]]


class TextFormat(Note):
    """The format of a text; a schema's name and what it is for change no token, nor does `strict`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The same as chats have it."""
        rest = self.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"type": self.type, "json_schema": rest or None}


def job_of(chat: Mapping[str, Any], served: ServedModel, names: Mapping[str, str]) -> Job:
    """The job of a dialect's request, from the members of its chat.

    Raises:
        ApiError: a field cannot be served; it has its name in `names`, or else that of chats.
    """
    try:
        return served.chat_job(ChatBody.model_validate(chat))
    except ValidationError as error:
        raise not_validated(error.errors()).renamed(names) from None
    except ApiError as error:
        raise error.renamed(names) from None


class ItemShape:
    """The common part of these dialects; a request has one choice."""

    prefix: str
    names_events = True

    # what each says in its own way: the answer so far, and events; `begin`, `add` and `end` of a text or a thought
    answer: Callable[[], dict[str, Any]]
    failure: Callable[[ApiError], dict[str, Any]]
    opening: Callable[[], Events]
    begin: Callable[[Kind], Events]
    add: Callable[[Piece], Events]
    end: Callable[[Kind], Events]
    add_call: Callable[[ToolCall], Events]
    closing: Callable[[], Events]

    def __init__(self, served: ServedModel, call: Call) -> None:
        (self._choice,) = call.choices
        self._call = call
        self._head: dict[str, Any] = {"id": new_id(self.prefix), "model": served.name}
        self._items: list[dict[str, Any]] = []
        self._open: Kind | None = None  # what the last item is, where it may go on
        self._pieces = AnswerPieces(call.job)

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        for _ in chain(self.opening(), self.step(self._choice, self._choice.tokens), self.closing()):
            pass
        return self.answer()

    def step(self, choice: ReplyChoice, added: list[ReplyToken]) -> Events:
        """Events of tokens: text as soon as it is certain to be no call, and calls as soon as they are complete."""
        for piece in self._pieces.of(added, is_last=choice.finish_reason is not None):
            if piece.kind != self._open:
                yield from self.close_item()
            if piece.call is not None:
                yield from self.add_call(piece.call)
                continue
            if self._open is None:
                self._open = piece.kind
                yield from self.begin(piece.kind)
            yield from self.add(piece)

    def close_item(self) -> Events:
        """Events of the end of a text or a thought that may go on, if there is one."""
        kind, self._open = self._open, None
        if kind is not None:
            yield from self.end(kind)

    @property
    def _about(self) -> dict[str, Any]:
        """The field `mxconv` of an answer."""
        return {**self._call.job.about, "sampling": self._call.job.sampling.members}
