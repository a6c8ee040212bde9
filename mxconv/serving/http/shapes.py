"""Answers as OpenAI's clients expect them; what is mxconv's own is in fields named `mxconv`."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.bodies import ChatBody, StreamOptions
from mxconv.serving.http.call import Call, ReplyChoice
from mxconv.serving.http.engine_thread import ReplyToken
from mxconv.serving.http.served import Job, ServedModel
from mxconv.text.thought_reader import ThoughtReader
from mxconv.text.tool_calls import ToolCall

Kind = Literal["text", "thought", "call"]


class Shape:
    """The common part of completions and chats."""

    prefix: str
    whole_object: str
    chunk_object: str
    names_events = False

    def __init__(self, served: ServedModel, call: Call) -> None:
        self._call = call
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "mxconv": call.job.about,
        }
        self._unsaid: list[list[ReplyToken]] = [[] for _ in call.choices]  # tokens of chunks that would say nothing

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [self._choice(choice, self._message(choice), choice.tokens) for choice in self._call.choices]
        head = self._head | self._with_sampling
        return {"object": self.whole_object, **head, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        raise NotImplementedError

    def step(self, choice: ReplyChoice, added: list[ReplyToken]) -> Iterator[dict[str, Any]]:
        """The chunk of a step: what it added to a choice, its ending, and in the last chunk how it was sampled.

        A step that adds nothing to show has none: its tokens come with the next one's.
        """
        is_last = all(choice.finish_reason for choice in self._call.choices)
        content, says_something = self._delta(choice, added)
        unsaid = self._unsaid[choice.index]
        unsaid += added
        if says_something or choice.finish_reason is not None:
            found = self._chunk(self._choice(choice, content | self._logprobs_of(unsaid), unsaid))
            self._unsaid[choice.index] = []
            yield found | (self._with_sampling if is_last else {})

    def closing(self) -> Iterator[dict[str, Any] | str]:
        """The chunk of `stream_options.include_usage` where it is wanted, and OpenAI's last words."""
        if self._call.job.body.includes_usage:
            yield self._chunk() | {"usage": self.usage()}
        yield "[DONE]"

    def failure(self, error: ApiError) -> dict[str, Any]:
        """OpenAI's error object."""
        return error.body

    def usage(self) -> dict[str, int]:
        """Tokens that were read and written; a stop token counts."""
        prompt, new = self._call.num_prompt_tokens, self._call.num_new_tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    @property
    def _with_sampling(self) -> dict[str, Any]:
        return {"mxconv": {**self._head["mxconv"], "sampling": self._call.job.sampling.members}}

    def _chunk(self, *choices: dict[str, Any]) -> dict[str, Any]:
        options = self._call.job.body.stream_options or StreamOptions()
        usage = {"usage": self.usage() if options.continuous_usage_stats else None} if options.include_usage else {}
        return {"object": self.chunk_object, **self._head, "choices": choices, **usage}

    def _choice(self, choice: ReplyChoice, content: dict[str, Any], tokens: list[ReplyToken]) -> dict[str, Any]:
        """A choice, with the level that guessed each token and counts of all drafts since it began, if wanted."""
        found = {"index": choice.index, **content, "finish_reason": self._ending(choice)}
        if self._call.job.body.wants_trace:
            found["mxconv"] = {
                "tokens": [{"id": one.id, "text": one.text, "guessed_by": one.guessed_by} for one in tokens],
                "num_tokens": len(choice.tokens),
                "num_rounds": choice.num_rounds,
                "levels": choice.levels,
            }
        return found

    def _message(self, choice: ReplyChoice) -> dict[str, Any]:
        """Content and logprobs of a choice that is whole."""
        raise NotImplementedError

    def _delta(self, choice: ReplyChoice, added: list[ReplyToken]) -> tuple[dict[str, Any], bool]:
        """Content that a step added, and whether there is any."""
        raise NotImplementedError

    def _logprobs_of(self, tokens: list[ReplyToken]) -> dict[str, Any]:
        """The member `logprobs`."""
        raise NotImplementedError

    def _ending(self, choice: ReplyChoice) -> str | None:
        return choice.finish_reason


class CompletionShape(Shape):
    """The shape of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        """The prompts, where they are echoed."""
        return [
            self._chunk(
                {"index": choice.index, "text": choice.prompt.text, **self._logprobs_of(choice.prompt_tokens)}
                | {"finish_reason": None}
            )
            for choice in self._call.choices
            if choice.prompt.text
        ]

    def _message(self, choice: ReplyChoice) -> dict[str, Any]:
        return {"text": choice.text, **self._logprobs_of([*choice.prompt_tokens, *choice.tokens])}

    def _delta(self, choice: ReplyChoice, added: list[ReplyToken]) -> tuple[dict[str, Any], bool]:
        text = "".join(token.text for token in added)
        return {"text": text}, bool(text)

    def _logprobs_of(self, tokens: list[ReplyToken]) -> dict[str, Any]:
        if self._call.job.num_logprobs is None:
            return {"logprobs": None}
        entries = [token.logprobs for token in tokens]
        # tokens that look alike share a name; the likelier one has it
        top = [
            None if (found := entry["top_logprobs"]) is None
            else {other["token"]: other["logprob"] for other in reversed(found)}
            for entry in entries
        ]  # fmt: skip
        return {
            "logprobs": {
                "tokens": [entry["token"] for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": top if self._call.job.num_logprobs else None,
                "text_offset": [token.offset for token in tokens],
            },
        }


class ChatShape(Shape):
    """The shape of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, served: ServedModel, call: Call) -> None:
        super().__init__(served, call)
        self._pieces = [AnswerPieces(call.job) for _ in call.choices]

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk({"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None})
            for choice in self._call.choices
        ]

    def _message(self, choice: ReplyChoice) -> dict[str, Any]:
        said = self._said(choice, choice.tokens)
        calls = [{name: call[name] for name in call if name != "index"} for call in said.pop("tool_calls", ())]
        message = {"role": "assistant", "content": None if calls else "", "refusal": None} | said
        return {"message": message | ({"tool_calls": calls} if calls else {}), **self._logprobs_of(choice.tokens)}

    def _delta(self, choice: ReplyChoice, added: list[ReplyToken]) -> tuple[dict[str, Any], bool]:
        delta = self._said(choice, added)
        return {"delta": delta}, bool(delta)

    def _said(self, choice: ReplyChoice, added: list[ReplyToken]) -> dict[str, Any]:
        """The members that tokens add: text, complete calls, and reasoning, as vLLM and llama-server name it."""
        found: dict[str, Any] = {}
        pieces = self._pieces[choice.index]
        first = pieces.num_calls
        for piece in pieces.of(added, is_last=choice.finish_reason is not None):
            if piece.call is not None:
                calls = found.setdefault("tool_calls", [])
                function = {"name": piece.call.name, "arguments": piece.call.arguments}
                number = first + len(calls)
                calls.append({"index": number, "id": new_id("call"), "type": "function", "function": function})
            else:
                name = "content" if piece.kind == "text" else "reasoning_content"
                found[name] = found.get(name, "") + piece.text
        return found

    def _ending(self, choice: ReplyChoice) -> str | None:
        has_called = choice.finish_reason == "stop" and self._pieces[choice.index].num_calls
        return "tool_calls" if has_called else choice.finish_reason

    def _logprobs_of(self, tokens: list[ReplyToken]) -> dict[str, Any]:
        wanted = self._call.job.num_logprobs is not None
        found = {"content": [token.logprobs for token in tokens], "refusal": None}
        return {"logprobs": found if wanted else None}


@dataclass
class Piece:
    """A further piece of a text or of a thought, or a call that is complete."""

    kind: Kind
    text: str = ""
    tokens: list[ReplyToken] = field(default_factory=list)  # of a text
    call: ToolCall | None = None


class AnswerPieces:
    """Takes the text of a choice apart, step by step."""

    def __init__(self, job: Job) -> None:
        tools = job.body.offered if isinstance(job.body, ChatBody) else []
        inner = None if job.tool_form is None else job.tool_form.reader(tools)
        self._reader = inner if job.thought_form is None else ThoughtReader(job.thought_form, inner)
        self._num_thought = 0  # characters of thoughts that were given
        self._silent: list[ReplyToken] = []  # of no text so far: some bytes of a character, or a call
        self.num_calls = 0

    def of(self, added: list[ReplyToken], is_last: bool) -> list[Piece]:
        """The pieces that became certain: text that is no call, thoughts, whole calls; neighbours of a kind are one."""
        pieces: list[Piece] = []
        for token in added:
            self._silent.append(token)
            self._take(token.text if self._reader is None else self._reader.feed(token.text), pieces)
        if self._reader is not None and is_last:
            self._take(self._reader.finish(), pieces)
        return pieces

    def _take(self, text: str, pieces: list[Piece]) -> None:
        reader = self._reader
        thought = "" if reader is None else reader.reasoning[self._num_thought :]
        self._num_thought += len(thought)
        said: tuple[tuple[Kind, str], ...] = ("thought", thought), ("text", text)
        for kind, piece in said:
            if piece:
                if not pieces or pieces[-1].kind != kind:
                    pieces.append(Piece(kind))
                pieces[-1].text += piece
                pieces[-1].tokens += self._silent if kind == "text" else []
                self._silent = []
        for call in [] if reader is None else reader.calls[self.num_calls :]:
            self._silent = []
            self.num_calls += 1
            pieces.append(Piece("call", call=call))


def new_id(prefix: str) -> str:
    """A random name of something in an answer."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
