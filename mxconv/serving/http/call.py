"""Requests while they are decoded: choices from tokens to text, calls, and their admission."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mxconv.serving.http.api_error import OVERLOADED, SERVER, ApiError
from mxconv.serving.http.engine_thread import EngineThread, ReplyToken, Update, Watcher
from mxconv.serving.http.logprobs import logprob_entry
from mxconv.serving.http.served import Job, JobPrompt, ServedModel
from mxconv.speculation.selection import Request, Selection
from mxconv.text.text_stream import TextStream
from mxconv.text.tokenizer import Tokenizer

LONGEST_RETRY = 60  # seconds
NUM_CONTEXT = 64  # tokens before a choice that its text is decoded after


@dataclass
class ReplyChoice:
    """The state of one choice.

    Args:
        index: among the reply's.
        job: what it belongs to.
        prompt: what it answers; its text comes first where a client wants it echoed.
    """

    index: int
    job: Job
    prompt: JobPrompt
    num_rounds: int = 0  # updates with tokens
    finish_reason: str | None = None
    error: ApiError | None = None
    tokens: list[ReplyToken] = field(default_factory=list)
    prompt_tokens: list[ReplyToken] = field(default_factory=list)  # where their logprobs are shown
    levels: list[dict[str, Any]] = field(default_factory=list)  # as of `Update`
    watcher: Watcher | None = None  # of its sequence

    def __post_init__(self) -> None:
        self.text, job = self.prompt.text, self.job
        self._tokenizer = job.served.tokenizer
        # new text is decoded after the last tokens, if they have any text; long prompts take long
        end = self.prompt.token_ids[-NUM_CONTEXT:]
        context = end if self._tokenizer.decode(end) else self.prompt.token_ids
        self._stream = TextStream(self._tokenizer, job.stop_strings, context, job.shown)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._stream.stop_string

    def take(self, update: Update) -> list[ReplyToken]:
        """Append what a step decided, and return it; tokens after a stop string are dropped."""
        begin = len(self.tokens)
        for token in update.tokens:
            before = self.tokens[-1].id if self.tokens else self.prompt.token_ids[-1]
            if token.found is not None:
                token.logprobs = logprob_entry(token.id, before, token.found, self._tokenizer)
            is_stop = token.id in (self.job.body.stop_token_ids or ())  # which a client named: no part of the text
            token.text = "" if is_stop else self._stream.feed(token.id)
            token.offset = len(self.text)
            self.tokens.append(token)
            self.text += token.text
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


def complete_prompt(prompt: JobPrompt, tokens: list[ReplyToken], tokenizer: Tokenizer) -> list[ReplyToken]:
    """The scored tokens of an echoed prompt with their texts, places and logprobs."""
    stream, length, before = TextStream(tokenizer), 0, None
    for token in tokens:
        # a special token may have a text that is not the prompt's
        token.offset = min(length, len(prompt.text))
        token.logprobs = logprob_entry(token.id, before, token.found, tokenizer)
        token.text = stream.feed(token.id)
        length += len(token.text)
        before = token.id
    return tokens


class Call:
    """The sequences of one request, submitted when it is made."""

    def __init__(self, thread: EngineThread, job: Job) -> None:
        self.job = job
        self.began = time.perf_counter()
        self.first_token: float | None = None  # seconds after it began
        self.choices: list[ReplyChoice] = []
        self._thread = thread
        self._updates: asyncio.Queue[tuple[int, Update]] = asyncio.Queue()  # of choices, by their index
        self._watchers: list[Watcher] = []  # of prompts, and of choices
        self._scored: asyncio.Queue[Update] = asyncio.Queue()  # of prompts, in order, where these are scored
        for prompt in job.prompts if job.scores_prompts else ():
            self._watchers.append(Watcher(self._scored.put_nowait, job.served, job.num_logprobs))
            thread.score(prompt.token_ids, self._watchers[-1])
        for prompt in job.prompts:
            for number in range(job.body.num_choices):
                self.choices.append(ReplyChoice(len(self.choices), job, prompt))
                self._submit(self.choices[-1], job.selection_of(number))

    def _submit(self, choice: ReplyChoice, selection: Selection) -> None:
        def on_update(update: Update) -> None:
            self._updates.put_nowait((choice.index, update))

        job = self.job
        if job.max_new_tokens == 0:
            on_update(Update(ending="length"))
            return
        choice.watcher = Watcher(on_update, job.served, job.num_logprobs, job.body.wants_trace)
        self._watchers.append(choice.watcher)
        most, drafts = job.max_new_tokens, job.body.uses_drafts
        request = Request(choice.prompt.token_ids, most, job.stop_tokens, selection, drafts)
        self._thread.submit(request, choice.watcher)

    def end(self) -> None:
        """Free what it holds, whatever became of the request."""
        for watcher in self._watchers:
            self._thread.forget(watcher)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.job.prompts)

    @property
    def num_new_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)

    def fail(self, error: ApiError) -> None:
        """Let whoever reads the parts have an error."""
        self._updates.put_nowait((0, Update(error=error)))
        self._scored.put_nowait(Update(error=error))

    async def parts(self) -> AsyncIterator[tuple[ReplyChoice, list[ReplyToken]]]:
        """New tokens of choices, until every one has ended; prompts have their logprobs before the first.

        Raises:
            ApiError: a sequence could not be decoded, or the call was broken off.
        """
        for prompt in self.job.prompts if self.job.scores_prompts else ():
            update = await self._scored.get()
            if update.error is not None:
                raise update.error
            # a long prompt has many labels
            tokens = await asyncio.to_thread(complete_prompt, prompt, update.tokens, self.job.served.tokenizer)
            for choice in self.choices:
                if choice.prompt is prompt:
                    choice.prompt_tokens = tokens
        while not all(choice.finish_reason for choice in self.choices):
            index, update = await self._updates.get()
            choice = self.choices[index]
            if update.error is not None:
                choice.error = update.error
                raise update.error
            if choice.finish_reason:  # a stop string, which the engine does not know of
                continue
            added = choice.take(update)
            if choice.finish_reason and update.ending is None and choice.watcher is not None:
                self._thread.forget(choice.watcher)
            if added and self.first_token is None:
                self.first_token = time.perf_counter() - self.began
            yield choice, added


class Admission:
    """Admits calls; used in the event loop alone.

    Args:
        thread: what decodes.
        max_sequences: of each model, decoded at a time.
        max_queue: sequences that wait, of all models together.
    """

    def __init__(self, thread: EngineThread, max_sequences: int, max_queue: int) -> None:
        self.thread = thread
        self.closes = False
        self._max_sequences, self._max_queue = max_sequences, max_queue
        self._open: Counter[ServedModel] = Counter()  # sequences
        self._calls: set[Call] = set()
        self._seconds = 1.0  # a sequence takes, smoothed

    @property
    def num_open(self) -> int:
        """Sequences that are decoded or wait."""
        return self._open.total()

    @contextmanager
    def admit(self, job: Job) -> Iterator[Call]:
        """A call for a job; it is over at the end of the context.

        Raises:
            ApiError: there is no room, or never will be.
        """
        count = len(job.prompts) * job.body.num_choices
        if self.closes:
            raise _shutting_down()
        if self.thread.failure is not None:
            raise self.thread.failed
        most, queue = self._max_sequences, self._max_queue
        if count > most + queue:
            message = f"{count} sequences (n times the prompts); at most {most + queue} fit in this server."
            raise ApiError(400, f"n: {message} Send several requests.", param="n")
        if sum(max(num - most, 0) for num in (self._open + Counter({job.served: count})).values()) > queue:
            turns = math.ceil(count / most)
            seconds = max(1, min(LONGEST_RETRY, math.ceil(turns * self._seconds)))
            raise ApiError(
                429,
                f"{self.num_open} sequences are decoded or wait; {most} of a model and {queue} that wait are the most. "
                "Ask again later.",
                OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        call = Call(self.thread, job)
        self._calls.add(call)
        self._open[job.served] += count
        try:
            yield call
        finally:
            call.end()
            self._calls.discard(call)
            self._open[job.served] -= count
            self._seconds += (time.perf_counter() - call.began - self._seconds) / 8

    def close(self) -> None:
        """Take no more calls."""
        self.closes = True

    def break_off(self) -> None:
        """End the calls that still run with an error."""
        for call in self._calls:
            call.fail(_shutting_down())


def _shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down. Ask again later.", SERVER, code="shutting_down")
