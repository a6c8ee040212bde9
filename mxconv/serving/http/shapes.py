"""Answers as OpenAI's clients expect them; what is mxconv's own stands in fields named `mxconv`."""

import time
import uuid
from typing import Any

from mxconv.serving.http.call import Call
from mxconv.serving.http.choice import Choice, Delta, PieceOfToken
from mxconv.serving.http.placed import Label, PlacedLogprob
from mxconv.serving.http.served import ServedModel
from mxconv.serving.http.updates import LevelCount


class Shape:
    """What completions and chats have in common.

    Args:
        served: the model.
        call: what is decoded.
    """

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, served: ServedModel, call: Call) -> None:
        self._call = call
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "mxconv": {"seed": call.job.seed},
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [self._choice(choice) | self._trace_of(choice) for choice in self._call.choices]
        head = self._head | self._with_sampling
        return {"object": self.whole_object, **head, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        return []

    def chunk(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        """What a step added to a choice, and how it ended if it did; behind the last of it, how it was sampled."""
        members = self._delta(delta) | {"index": choice.index, "finish_reason": choice.finish_reason}
        if self._call.job.wants_trace:
            members["mxconv"] = _trace(choice, delta.pieces, delta.levels)
        is_last = all(choice.is_done for choice in self._call.choices)
        return self._chunk([members]) | (self._with_sampling if is_last else {})

    def last(self) -> dict[str, Any]:
        """The chunk of `stream_options.include_usage`."""
        return self._chunk([]) | {"usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens that were read and written; a stop token counts."""
        prompt, new = self._call.num_prompt_tokens, self._call.num_new_tokens
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}

    @property
    def _with_sampling(self) -> dict[str, Any]:
        return {"mxconv": {**self._head["mxconv"], "sampling": self._call.job.sampling.members}}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": self.chunk_object, **self._head, "choices": choices}

    def _trace_of(self, choice: Choice) -> dict[str, Any]:
        return {"mxconv": _trace(choice, choice.pieces, choice.levels)} if self._call.job.wants_trace else {}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError


class CompletionShape(Shape):
    """Of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk([self._shown(choice)]) for choice in self._call.choices if choice.shown]

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": self._logprobs([*choice.prompt_logprobs, *choice.logprobs]),
            "finish_reason": choice.finish_reason,
        }

    def _shown(self, choice: Choice) -> dict[str, Any]:
        """The prompt, where it is echoed."""
        logprobs = self._logprobs(choice.prompt_logprobs)
        return {"index": choice.index, "text": choice.shown, "logprobs": logprobs, "finish_reason": None}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        return {"text": delta.text, "logprobs": self._logprobs(delta.logprobs)}

    def _logprobs(self, placed: list[PlacedLogprob]) -> dict[str, Any] | None:
        if self._call.job.num_logprobs is None:
            return None
        top = [None if one.top is None else _by_text(one.top) for one in placed]
        return {
            "tokens": [one.label.text for one in placed],
            "token_logprobs": [one.logprob for one in placed],
            "top_logprobs": top if self._call.job.num_logprobs else None,
            "text_offset": [one.offset for one in placed],
        }


class ChatShape(Shape):
    """Of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk([{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for choice in self._call.choices
        ]

    def _choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def _delta(self, delta: Delta) -> dict[str, Any]:
        return {"delta": {"content": delta.text} if delta.text else {}, "logprobs": self._logprobs(delta.logprobs)}

    def _logprobs(self, placed: list[PlacedLogprob]) -> dict[str, Any] | None:
        if self._call.job.num_logprobs is None:
            return None
        return {
            "content": [
                {
                    "token": one.label.text,
                    "logprob": one.logprob,
                    "bytes": one.label.bytes,
                    "top_logprobs": [
                        {"token": label.text, "logprob": logprob, "bytes": label.bytes}
                        for label, logprob in one.top or ()
                    ],
                }
                for one in placed
            ],
            "refusal": None,
        }


def _by_text(top: list[tuple[Label, float]]) -> dict[str, float]:
    """Tokens that look alike share a name; the likelier one has it."""
    return {label.text: logprob for label, logprob in reversed(top)}


def _trace(choice: Choice, pieces: list[PieceOfToken], levels: list[LevelCount]) -> dict[str, Any]:
    """Who guessed the tokens of a chunk, and what drafts proposed and got accepted since the choice began."""
    return {
        "tokens": [{"id": one.token, "text": one.text, "guessed_by": one.guessed_by} for one in pieces],
        "num_tokens": choice.num_tokens,
        "num_rounds": choice.num_rounds,
        "levels": [
            {"name": level.name, "num_proposed": level.num_proposed, "num_accepted": level.num_accepted}
            for level in levels
        ],
    }
