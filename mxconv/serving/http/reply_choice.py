"""One choice of a reply while it is written: tokens in, pieces of text out, until it ends."""

from dataclasses import dataclass, field
from typing import Any

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.engine_thread import Update
from mxconv.serving.http.logprobs import PlacedToken, place
from mxconv.serving.http.served import JobPrompt
from mxconv.text.text_stream import TextStream
from mxconv.text.tokenizer import Tokenizer

NUM_CONTEXT = 64  # tokens


@dataclass(frozen=True)
class Delta:
    """The part of a choice that an update adds.

    Args:
        text: of all new tokens.
        pieces: `id`, `text` and `guessed_by` of each token; the text is what became certain with it: often its own,
            now and then none or that of several.
        logprobs: of each token, where they are wanted.
        levels: as of `Update`.
    """

    text: str
    pieces: list[dict[str, Any]]
    logprobs: list[PlacedToken]
    levels: list[dict[str, Any]]


@dataclass
class ReplyChoice:
    """The state of one choice.

    Args:
        index: among the reply's.
        prompt: what it answers; its text comes first where a client wants it echoed.
        tokenizer: the target's.
        stop_strings: that end it; they are no part of the text.
    """

    index: int
    prompt: JobPrompt
    tokenizer: Tokenizer
    stop_strings: list[str]
    num_tokens: int = 0
    num_rounds: int = 0  # updates with tokens
    finish_reason: str | None = None
    error: ApiError | None = None
    pieces: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[PlacedToken] = field(default_factory=list)
    prompt_logprobs: list[PlacedToken] = field(default_factory=list)  # where they are shown
    levels: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.prompt.text
        # new text is decoded after the last tokens, if they have any text; long prompts take long
        end = self.prompt.token_ids[-NUM_CONTEXT:]
        context = end if self.tokenizer.decode(end) else self.prompt.token_ids
        self._stream = TextStream(self.tokenizer, self.stop_strings, context)
        self._last = self.prompt.token_ids[-1]

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def take(self, update: Update) -> Delta:
        """Go on with what a step decided; tokens after a stop string are dropped."""
        pieces: list[dict[str, Any]] = []
        logprobs: list[PlacedToken] = []
        for new in update.tokens:
            if new.logprobs is not None:
                offset = len(self.text) + sum(len(piece["text"]) for piece in pieces)
                logprobs.append(place(new.token, self._last, new.logprobs, offset, self.tokenizer))
            text = self._stream.feed(new.token)
            pieces.append({"id": new.token, "text": text, "guessed_by": new.guessed_by})
            self.num_tokens += 1
            self._last = new.token
            if self._stream.stopped:
                self.finish_reason = "stop"
                break
        else:
            self.error, self.finish_reason = update.error, update.ending
        text = "".join(piece["text"] for piece in pieces)
        if self.finish_reason is not None and (rest := self._stream.finish()):
            text += rest
            if pieces:
                pieces[-1]["text"] += rest
            if self._stream.stopped:
                self.finish_reason = "stop"
        self.num_rounds += bool(pieces)
        self.text += text
        self.pieces += pieces
        self.logprobs += logprobs
        self.levels = update.levels or self.levels
        return Delta(text, pieces, logprobs, self.levels)
