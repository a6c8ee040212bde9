"""Requests while they are decoded: a desk that admits so many at a time, and calls with their choices."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from mxconv.serving.http.api_error import OVERLOADED, SERVER, ApiError
from mxconv.serving.http.engine_thread import EngineThread, Update, Watcher
from mxconv.serving.http.logprobs import place_prompt
from mxconv.serving.http.prompt_scores import Scores, Unscored
from mxconv.serving.http.reply_choice import Delta, ReplyChoice
from mxconv.serving.http.served import Job
from mxconv.serving.sequence import Request
from mxconv.text.tokenizer import Tokenizer

LONGEST_RETRY = 60  # seconds


class Call:
    """The sequences of one request.

    Args:
        thread: decodes.
        tokenizer: the target's.
        job: what to decode.
    """

    def __init__(self, thread: EngineThread, tokenizer: Tokenizer, job: Job) -> None:
        self.job = job
        self.choices: list[ReplyChoice] = []
        for prompt in job.prompts:
            for _ in range(job.body.num_choices):
                self.choices.append(ReplyChoice(len(self.choices), prompt, tokenizer, job.stop_strings))
        self.began = time.perf_counter()
        self.first_token: float | None = None  # seconds after it began
        self._thread = thread
        self._tokenizer = tokenizer
        self._arrived: asyncio.Queue[tuple[int, Update | Scores]] = asyncio.Queue()  # of choices, or of prompts
        self._watchers: list[Watcher] = []
        self._unscored: dict[int, Unscored] = {}  # by the number of the prompt

    def begin(self) -> None:
        """Submit all sequences, and the prompts whose tokens have logprobs too."""
        job = self.job
        if job.scores_prompts:
            for number, prompt in enumerate(job.prompts):
                unscored = Unscored(prompt.token_ids, job.num_logprobs or 0, self._hear(number))
                self._unscored[number] = unscored
                self._thread.score(unscored)
        for choice in self.choices:
            if job.max_new_tokens == 0:
                self._arrived.put_nowait((choice.index, Update(ending="length")))
                continue
            watcher = Watcher(self._hear(choice.index), job.num_logprobs, job.body.wants_trace)
            self._watchers.append(watcher)
            selection = job.selection_of(choice.index % job.body.num_choices)
            stops = self._tokenizer.eos_token_ids
            self._thread.submit(Request(choice.prompt.token_ids, job.max_new_tokens, stops, selection), watcher)

    def end(self) -> None:
        """Free what it holds, whatever became of the request."""
        watched: list[Watcher | Unscored] = [*self._watchers, *self._unscored.values()]
        for one in watched:
            self._thread.forget(one)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.job.prompts)

    @property
    def num_new_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def fail(self, error: ApiError) -> None:
        """Let whoever reads the parts have an error."""
        self._arrived.put_nowait((0, error))

    async def parts(self) -> AsyncIterator[tuple[ReplyChoice, Delta]]:
        """Deltas of choices, until every one has ended; prompts have their logprobs before the first.

        Raises:
            ApiError: a sequence could not be decoded, or the call was broken off.
        """
        early: deque[tuple[int, Update]] = deque()
        while not all(choice.is_done for choice in self.choices):
            index, news = early.popleft() if early and not self._unscored else await self._arrived.get()
            if isinstance(news, ApiError):
                raise news
            if isinstance(news, list):
                await self._take_scores(index, news)
                continue
            if self._unscored and news.error is None:
                early.append((index, news))
                continue
            choice = self.choices[index]
            if choice.is_done:  # by a stop string that the engine does not know of
                continue
            delta = choice.take(news)
            if choice.error is not None:
                raise choice.error
            if choice.is_done and news.ending is None:
                self._thread.forget(self._watchers[index])
            if delta.pieces and self.first_token is None:
                self.first_token = time.perf_counter() - self.began
            yield choice, delta

    async def _take_scores(self, number: int, scores: Scores) -> None:
        assert isinstance(scores, list)
        del self._unscored[number]
        prompt = self.job.prompts[number]
        # a long prompt has many labels
        placed = await asyncio.to_thread(place_prompt, prompt.token_ids, prompt.text, scores, self._tokenizer)
        for choice in self.choices:
            if choice.prompt is prompt:
                choice.prompt_logprobs = placed

    def _hear(self, index: int) -> Callable[[Update | Scores], None]:
        return lambda news: self._arrived.put_nowait((index, news))


class Desk:
    """Admits calls; used in the event loop alone.

    Args:
        thread: decodes.
        tokenizer: the target's.
        max_sequences: decoded at a time.
        max_queue: that may wait.
    """

    def __init__(self, thread: EngineThread, tokenizer: Tokenizer, max_sequences: int, max_queue: int) -> None:
        self.thread = thread
        self.capacity = max_sequences + max_queue
        self.num_open = 0  # sequences
        self.closes = False
        self._tokenizer = tokenizer
        self._max_sequences = max_sequences
        self._calls: set[Call] = set()
        self._seconds = 1.0  # a sequence takes, smoothed

    @contextmanager
    def admit(self, job: Job) -> Iterator[Call]:
        """A call for a job; it is over at the end of the context.

        Raises:
            ApiError: there is no room, or never will be.
        """
        count = len(job.prompts) * job.body.num_choices
        if self.closes:
            raise self._shutting_down()
        if self.thread.failure is not None:
            raise self.thread.failed
        if count > self.capacity:
            message = f"{count} sequences (n times the prompts); at most {self.capacity} fit in this server."
            raise ApiError(400, f"n: {message} Send several requests.", param="n")
        if self.num_open + count > self.capacity:
            turns = math.ceil(count / self._max_sequences)
            seconds = max(1, min(LONGEST_RETRY, math.ceil(turns * self._seconds)))
            raise ApiError(
                429,
                f"{self.num_open} sequences are decoded or wait; {self.capacity} are the most. Ask again later.",
                OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        call = Call(self.thread, self._tokenizer, job)
        self._calls.add(call)
        self.num_open += count
        try:
            call.begin()
            yield call
        finally:
            call.end()
            self._calls.discard(call)
            self.num_open -= count
            self._seconds += (time.perf_counter() - call.began - self._seconds) / 8

    def close(self) -> None:
        """Take no more calls."""
        self.closes = True

    def break_off(self) -> None:
        """End the calls that still run with an error."""
        for call in list(self._calls):
            call.fail(self._shutting_down())

    def _shutting_down(self) -> ApiError:
        return ApiError(503, "The server is shutting down. Ask again later.", SERVER, code="shutting_down")
