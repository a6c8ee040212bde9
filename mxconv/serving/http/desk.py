"""Where requests come in: so many at a time, each a call with its choices, freed as soon as nobody wants it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType

from mxconv.model.tokenizer import Tokenizer
from mxconv.serving.http.choice import Choice, Delta
from mxconv.serving.http.engine_thread import EngineThread, Update, Watcher
from mxconv.serving.http.errors import OVERLOADED, SERVER, ApiError, shutting_down
from mxconv.serving.http.job import Job
from mxconv.serving.request import Request

LONGEST_RETRY = 60  # seconds


@dataclass(frozen=True)
class Part:
    """What a choice gained."""

    choice: Choice
    delta: Delta


class Desk:
    """Admits calls; used in the event loop alone.

    Args:
        thread: decodes.
        tokenizer: the target's.
        max_sequences: that decode at a time.
        max_queue: that may wait.
    """

    def __init__(self, thread: EngineThread, tokenizer: Tokenizer, max_sequences: int, max_queue: int) -> None:
        self.thread = thread
        self.tokenizer = tokenizer
        self.capacity = max_sequences + max_queue
        self.num_open = 0  # sequences
        self.closes = False
        self._max_sequences = max_sequences
        self._calls: set[Call] = set()
        self._seconds = 1.0  # a sequence takes, smoothed

    def admit(self, job: Job, shown: list[str]) -> "Call":
        """A call for a job, to be used as a context manager.

        Args:
            job: what to decode.
            shown: what the text of each prompt's choices begins with.

        Raises:
            ApiError: there is no room, or never will be.
        """
        if self.closes:
            raise shutting_down()
        if self.thread.failure is not None:
            raise ApiError(503, f"The engine failed ({self.thread.failure}). Start the server again.", SERVER)
        if job.num_sequences > self.capacity:
            raise ApiError(
                400,
                f"n: {job.num_sequences} sequences (n times the prompts); at most {self.capacity} fit in this server. "
                "Send several requests.",
                param="n",
            )
        if self.num_open + job.num_sequences > self.capacity:
            raise ApiError(
                429,
                f"{self.num_open} sequences are decoded or wait; {self.capacity} are the most. Ask again later.",
                OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(job.num_sequences))},
            )
        return Call(self, job, shown)

    def close(self) -> None:
        """Take no more calls."""
        self.closes = True

    def break_off(self) -> None:
        """End the calls that still run with an error."""
        for call in list(self._calls):
            call.fail(shutting_down())

    def opened(self, call: "Call") -> None:
        self._calls.add(call)
        self.num_open += len(call.choices)

    def closed(self, call: "Call", seconds: float) -> None:
        self._calls.discard(call)
        self.num_open -= len(call.choices)
        self._seconds += (seconds - self._seconds) / 8

    def _retry_after(self, num_sequences: int) -> int:
        """Seconds until so many have probably ended."""
        rounds = math.ceil(num_sequences / self._max_sequences)
        return max(1, min(LONGEST_RETRY, math.ceil(rounds * self._seconds)))


class Call:
    """The sequences of one request. A context manager: leaving it frees them, whatever became of the request."""

    def __init__(self, desk: Desk, job: Job, shown: list[str]) -> None:
        self._desk = desk
        self.job = job
        self._arrived: asyncio.Queue[tuple[int, Update] | ApiError] = asyncio.Queue()
        self._watchers: list[Watcher] = []
        self.choices: list[Choice] = []
        for prompt, begin in zip(job.prompts, shown, strict=True):
            for number in range(job.num_choices):
                seed = job.selection_of(number).seed
                index = len(self.choices)
                self.choices.append(Choice(index, prompt, seed, desk.tokenizer, job.stop_strings, begin))
        self.began = time.perf_counter()
        self.first_token: float | None = None  # seconds after it began

    def __enter__(self) -> "Call":
        self._desk.opened(self)
        for choice in self.choices:
            watcher = self._watcher(choice.index)
            self._watchers.append(watcher)
            request = Request(
                choice.prompt.token_ids,
                self.job.max_new_tokens,
                self._desk.tokenizer.eos_token_ids,
                self.job.selection_of(choice.index % self.job.num_choices),
            )
            self._desk.thread.submit(request, watcher)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watcher in self._watchers:
            self._desk.thread.forget(watcher)
        self._desk.closed(self, time.perf_counter() - self.began)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.job.prompts)

    @property
    def num_new_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def fail(self, error: ApiError) -> None:
        """Let whoever reads the parts have an error."""
        self._arrived.put_nowait(error)

    async def parts(self) -> AsyncIterator[Part]:
        """Until every choice has ended.

        Raises:
            ApiError: a sequence could not be decoded, or the call was broken off.
        """
        while not all(choice.is_done for choice in self.choices):
            arrived = await self._arrived.get()
            if isinstance(arrived, ApiError):
                raise arrived
            index, update = arrived
            choice = self.choices[index]
            if choice.is_done:  # by a stop string, of which the engine had not heard
                continue
            delta = choice.take(update)
            if choice.error is not None:
                raise _failure(choice.error)
            if choice.is_done and update.ending is None:
                self._desk.thread.forget(self._watchers[index])
            if delta.pieces and self.first_token is None:
                self.first_token = time.perf_counter() - self.began
            yield Part(choice, delta)

    def _watcher(self, index: int) -> Watcher:
        def hear(update: Update) -> None:
            self._arrived.put_nowait((index, update))

        return Watcher(hear, self.job.num_logprobs, self.job.wants_trace)


def _failure(update: Update) -> ApiError:
    if update.is_refusal:
        return ApiError(400, update.error)
    return ApiError(500, update.error, SERVER)
