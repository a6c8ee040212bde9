"""Dialects whose answers are lists of thoughts, texts and calls: /v1/responses and /v1/messages.

Their requests become chats. A whole answer is what the events of its stream add up to, so that both say the same.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from pydantic import Field, ValidationError

from mxconv.serving.http.api_error import ApiError, not_validated
from mxconv.serving.http.bodies import ChatBody
from mxconv.serving.http.call import Call, ReplyChoice, ReplyToken
from mxconv.serving.http.history import Note
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import answer_reader, new_id
from mxconv.text.tool_calls import ToolCall

Events = Iterator[dict[str, Any]]


class TextFormat(Note):
    """What a text looks like; a schema's name and what it is for change no token, nor does `strict`."""

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

    # what each says in its own way: the answer so far, and events
    answer: Callable[[], dict[str, Any]]
    failure: Callable[[ApiError], dict[str, Any]]
    opening: Callable[[], Events]
    begin_text: Callable[[], Events]
    add_text: Callable[[str, list[ReplyToken]], Events]
    end_text: Callable[[], Events]
    begin_thought: Callable[[], Events]
    add_thought: Callable[[str], Events]
    end_thought: Callable[[], Events]
    add_call: Callable[[ToolCall], Events]
    closing: Callable[[], Events]

    def __init__(self, served: ServedModel, call: Call) -> None:
        (self._choice,) = call.choices
        self._call = call
        self._head: dict[str, Any] = {"id": new_id(self.prefix), "model": served.name}
        self._items: list[dict[str, Any]] = []
        self._open = ""  # "text" or "thought" where the last item is one that may go on
        self._kind = self._piece = ""  # of a text or a thought that is yet to be said
        self._tokens: list[ReplyToken] = []  # of a text that is yet to be said
        self._num_thought = 0  # characters of thoughts that were said, or are to be
        self._silent: list[ReplyToken] = []  # of no text so far: some bytes of a character, or a call
        self._reader = answer_reader(call.job)
        self._num_calls = 0

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        for _ in chain(self.opening(), self.step(self._choice, self._choice.tokens), self.closing()):
            pass
        return self.answer()

    def step(self, choice: ReplyChoice, added: list[ReplyToken]) -> Events:
        """Events of tokens: text as soon as it is certain to be no call, and calls as soon as they are complete."""
        for token in added:
            self._silent.append(token)
            yield from self._heard(token.text if self._reader is None else self._reader.feed(token.text))
        if self._reader is not None and choice.finish_reason is not None:
            yield from self._heard(self._reader.finish())
        yield from self._say()

    def close_text(self) -> Events:
        """Events of the end of a text or a thought that may go on, if there is one."""
        kind, self._open = self._open, ""
        if kind:
            yield from self.end_text() if kind == "text" else self.end_thought()

    def _heard(self, text: str) -> Events:
        """Events of a further text, and of the thought and the calls that are certain since."""
        thought = "" if self._reader is None else self._reader.reasoning[self._num_thought :]
        self._num_thought += len(thought)
        for kind, piece in (("thought", thought), ("text", text)):
            if piece:
                if self._kind != kind:
                    yield from self._say()
                self._kind, self._piece = kind, self._piece + piece
                self._tokens += self._silent if kind == "text" else []
                self._silent = []
        for call in [] if self._reader is None else self._reader.calls[self._num_calls :]:
            yield from self._say()
            self._num_calls += 1
            self._silent = []
            yield from self.close_text()
            yield from self.add_call(call)

    def _say(self) -> Events:
        """Events of the piece of a text or a thought that waits, if there is one."""
        if not self._piece:
            return
        is_text = self._kind == "text"
        if self._open != self._kind:
            yield from self.close_text()
            yield from self.begin_text() if is_text else self.begin_thought()
            self._open = self._kind
        yield from self.add_text(self._piece, self._tokens) if is_text else self.add_thought(self._piece)
        self._piece, self._tokens = "", []

    @property
    def _about(self) -> dict[str, Any]:
        """The field `mxconv` of an answer."""
        return {**self._call.job.about, "sampling": self._call.job.sampling.members}
