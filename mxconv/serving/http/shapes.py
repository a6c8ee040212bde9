"""Answers as OpenAI's clients expect them; what is mxconv's own is in fields named `mxconv`."""

import time
import uuid
from typing import Any

from mxconv.serving.http.call import Call
from mxconv.serving.http.logprobs import PlacedToken
from mxconv.serving.http.reply_choice import Delta, ReplyChoice
from mxconv.serving.http.served import ServedModel


class Shape:
    """The common part of completions and chats.

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
            "mxconv": {"seed": call.job.selection.seed},
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {"index": choice.index, **self._choice(choice), "finish_reason": choice.finish_reason}
            | self._trace(choice, choice.pieces, choice.levels)
            for choice in self._call.choices
        ]
        head = self._head | self._with_sampling
        return {"object": self.whole_object, **head, "choices": choices, "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        return []

    def chunk(self, choice: ReplyChoice, delta: Delta) -> dict[str, Any]:
        """The chunk of a step: what it added to a choice, its ending, and in the last chunk how it was sampled."""
        members = self._delta(delta) | {"index": choice.index, "finish_reason": choice.finish_reason}
        members |= self._trace(choice, delta.pieces, delta.levels)
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

    def _trace(self, choice: ReplyChoice, pieces: list[dict[str, Any]], levels: list[dict[str, Any]]) -> dict[str, Any]:
        """The level that guessed each token, and counts of all drafts since the choice began, if they are wanted."""
        if not self._call.job.body.wants_trace:
            return {}
        counts = {"num_tokens": choice.num_tokens, "num_rounds": choice.num_rounds}
        return {"mxconv": {"tokens": pieces, **counts, "levels": levels}}

    def _choice(self, choice: ReplyChoice) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, delta: Delta) -> dict[str, Any]:
        raise NotImplementedError


class CompletionShape(Shape):
    """The shape of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def opening(self) -> list[dict[str, Any]]:
        """The prompts, where they are echoed."""
        return [
            self._chunk(
                [
                    {
                        "index": choice.index,
                        "text": choice.prompt.text,
                        "logprobs": self._logprobs(choice.prompt_logprobs),
                        "finish_reason": None,
                    }
                ]
            )
            for choice in self._call.choices
            if choice.prompt.text
        ]

    def _choice(self, choice: ReplyChoice) -> dict[str, Any]:
        return {"text": choice.text, "logprobs": self._logprobs([*choice.prompt_logprobs, *choice.logprobs])}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        return {"text": delta.text, "logprobs": self._logprobs(delta.logprobs)}

    def _logprobs(self, placed: list[PlacedToken]) -> dict[str, Any] | None:
        if self._call.job.num_logprobs is None:
            return None
        entries = [one.entry for one in placed]
        # tokens that look alike share a name; the likelier one has it
        top = [
            None if (found := entry["top_logprobs"]) is None
            else {other["token"]: other["logprob"] for other in reversed(found)}
            for entry in entries
        ]  # fmt: skip
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": top if self._call.job.num_logprobs else None,
            "text_offset": [one.offset for one in placed],
        }


class ChatShape(Shape):
    """The shape of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk([{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}])
            for choice in self._call.choices
        ]

    def _choice(self, choice: ReplyChoice) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        return {"message": message, "logprobs": self._logprobs(choice.logprobs)}

    def _delta(self, delta: Delta) -> dict[str, Any]:
        return {"delta": {"content": delta.text} if delta.text else {}, "logprobs": self._logprobs(delta.logprobs)}

    def _logprobs(self, placed: list[PlacedToken]) -> dict[str, Any] | None:
        wanted = self._call.job.num_logprobs is not None
        return {"content": [one.entry for one in placed], "refusal": None} if wanted else None
