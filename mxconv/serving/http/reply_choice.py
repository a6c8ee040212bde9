"""One choice of a reply while it is written: tokens in, pieces of text out, until it ends."""

from dataclasses import dataclass, field
from typing import Any

from mxconv.serving.http.api_error import ApiError
from mxconv.serving.http.engine_thread import Update
from mxconv.serving.http.logprobs import TokenLogprobs, logprob_entry
from mxconv.serving.http.served import JobPrompt
from mxconv.text.text_stream import TextStream
from mxconv.text.tokenizer import Tokenizer

NUM_CONTEXT = 64  # tokens


@dataclass
class ReplyToken:
    """A token as clients see it.

    Args:
        id: of the vocabulary.
        text: what became certain with it: often its own, now and then none or that of several.
        guessed_by: the level that guessed it; None is the target itself.
        offset: characters of the choice's text before it.
        logprobs: OpenAI's object; empty where none is wanted.
    """

    id: int
    text: str
    guessed_by: str | None
    offset: int
    logprobs: dict[str, Any]


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
    num_rounds: int = 0  # updates with tokens
    finish_reason: str | None = None
    error: ApiError | None = None
    tokens: list[ReplyToken] = field(default_factory=list)
    prompt_tokens: list[ReplyToken] = field(default_factory=list)  # where their logprobs are shown
    levels: list[dict[str, Any]] = field(default_factory=list)  # as of `Update`

    def __post_init__(self) -> None:
        self.text = self.prompt.text
        # new text is decoded after the last tokens, if they have any text; long prompts take long
        end = self.prompt.token_ids[-NUM_CONTEXT:]
        context = end if self.tokenizer.decode(end) else self.prompt.token_ids
        self._stream = TextStream(self.tokenizer, self.stop_strings, context)

    def take(self, update: Update) -> list[ReplyToken]:
        """Append what a step decided, and return it; tokens after a stop string are dropped."""
        begin = len(self.tokens)
        for new in update.tokens:
            last = self.tokens[-1].id if self.tokens else self.prompt.token_ids[-1]
            entry = {} if new.logprobs is None else logprob_entry(new.token, last, new.logprobs, self.tokenizer)
            text = self._stream.feed(new.token)
            self.tokens.append(ReplyToken(new.token, text, new.guessed_by, len(self.text), entry))
            self.text += text
            if self._stream.stopped:
                self.finish_reason = "stop"
                break
        else:
            self.finish_reason = update.ending
        added = self.tokens[begin:]
        if self.finish_reason is not None and added:
            rest = self._stream.finish()
            added[-1].text += rest
            self.text += rest
            if self._stream.stopped:
                self.finish_reason = "stop"
        self.num_rounds += bool(added)
        self.levels = update.levels or self.levels
        return added


def scored_prompt(prompt: JobPrompt, scores: list[TokenLogprobs], tokenizer: Tokenizer) -> list[ReplyToken]:
    """All tokens of an echoed prompt, from the logprobs of all but the first."""
    stream, length, before = TextStream(tokenizer), 0, None
    tokens = []
    for token, found in zip(prompt.token_ids, (None, *scores), strict=True):
        # a special token may have a text that is not the prompt's
        offset, entry = min(length, len(prompt.text)), logprob_entry(token, before, found, tokenizer)
        text = stream.feed(token)
        tokens.append(ReplyToken(token, text, None, offset, entry))
        length += len(text)
        before = token
    return tokens
