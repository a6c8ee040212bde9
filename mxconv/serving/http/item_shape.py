"""Dialects whose answers are lists of texts and calls: /v1/responses and /v1/messages.

Their requests become chats. A whole answer is what the events of its stream add up to, so that both say the same.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

from pydantic import Field, ValidationError

from mxconv.serving.http.api_error import ApiError, not_validated
from mxconv.serving.http.bodies import Body, ChatBody
from mxconv.serving.http.call import Call, ReplyChoice, ReplyToken
from mxconv.serving.http.served import Job, ServedModel
from mxconv.serving.http.shapes import answer_reader, new_id
from mxconv.text.tool_calls import ToolCall

Events = Iterator[dict[str, Any]]


class TextFormat(Body):
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
    add_call: Callable[[ToolCall], Events]
    closing: Callable[[], Events]

    def __init__(self, served: ServedModel, call: Call) -> None:
        (self._choice,) = call.choices
        self._call = call
        self._head: dict[str, Any] = {"id": new_id(self.prefix), "model": served.name}
        self._items: list[dict[str, Any]] = []
        self._text_is_open = False  # whether the last item is a text that may go on
        self._tokens: list[ReplyToken] = []  # of text that is yet to be said
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
        text = ""
        for token in added:
            self._silent.append(token)
            text += self._heard(token.text if self._reader is None else self._reader.feed(token.text))
            if self._reader is not None and len(self._reader.calls) > self._num_calls:
                yield from self._said(text)
                text = ""
        if self._reader is not None and choice.finish_reason is not None:
            text += self._heard(self._reader.finish())
        yield from self._said(text)

    def _heard(self, piece: str) -> str:
        """The same piece; where it is not empty, the tokens so far are those of a text."""
        if piece:
            self._tokens += self._silent
            self._silent = []
        return piece

    def close_text(self) -> Events:
        """Events of the end of a text that may go on, if there is one."""
        if self._text_is_open:
            self._text_is_open = False
            yield from self.end_text()

    def _said(self, text: str) -> Events:
        """Events of a text, and of the calls that are complete since."""
        if text and not self._text_is_open:
            self._text_is_open = True
            yield from self.begin_text()
        if text:
            yield from self.add_text(text, self._tokens)
        self._tokens = []
        for call in [] if self._reader is None else self._reader.calls[self._num_calls :]:
            self._num_calls += 1
            self._silent = []
            yield from self.close_text()
            yield from self.add_call(call)

    @property
    def _about(self) -> dict[str, Any]:
        """The field `mxconv` of an answer."""
        return {"seed": self._call.job.selection.seed, "sampling": self._call.job.sampling.members}
