"""One request while it is decoded: its choices, what the engine says of them, and their end."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from mxconv.serving.http.choice import Choice, Delta
from mxconv.serving.http.errors import SERVER, ApiError
from mxconv.serving.http.job import Job, Prompt
from mxconv.serving.http.placed import place_prompt
from mxconv.serving.http.prompt_scores import PromptScores, Unscored
from mxconv.serving.http.updates import Update, Watcher
from mxconv.serving.request import Request

if TYPE_CHECKING:
    from mxconv.serving.http.desk import Desk


@dataclass(frozen=True)
class Part:
    """What a choice gained."""

    choice: Choice
    delta: Delta


@dataclass(frozen=True)
class Scored:
    """The scores of one of the job's prompts."""

    prompt: int
    scores: PromptScores


News = tuple[int, Update] | Scored | ApiError  # an update is of the choice with that index


class Call:
    """The sequences of one request. A context manager: leaving it frees them, whatever became of the request.

    Args:
        desk: that admits it.
        job: what to decode.
        shown: what the text of each prompt's choices begins with.
    """

    def __init__(self, desk: "Desk", job: Job, shown: list[str]) -> None:
        self._desk = desk
        self.job = job
        self._arrived: asyncio.Queue[News] = asyncio.Queue()
        self._watchers: list[Watcher] = []
        self._unscored: dict[int, Unscored] = {}  # by the number of the prompt
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
        if self.job.scores_prompts:
            for number, prompt in enumerate(self.job.prompts):
                self._unscored[number] = self._unscored_prompt(number, prompt)
                self._desk.thread.score(self._unscored[number])
        for choice in self.choices:
            if self.job.max_new_tokens == 0:
                self._arrived.put_nowait((choice.index, Update(ending="length")))
                continue
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
        watched: list[Watcher | Unscored] = [*self._watchers, *self._unscored.values()]
        for one in watched:
            self._desk.thread.forget(one)
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
        early = await self._scores()
        while not all(choice.is_done for choice in self.choices):
            index, update = early.popleft() if early else await self._update()
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

    async def _scores(self) -> deque[tuple[int, Update]]:
        """Give choices the logprobs of their prompts; what arrived meanwhile.

        Raises:
            ApiError: there are none, a sequence could not be decoded, or the call was broken off.
        """
        early: deque[tuple[int, Update]] = deque()
        while self._unscored:
            arrived = await self._arrived.get()
            if isinstance(arrived, ApiError):
                raise arrived
            if isinstance(arrived, Scored):
                await self._take_scores(arrived)
            elif arrived[1].ending == "error":
                raise _failure(arrived[1])
            else:
                early.append(arrived)
        return early

    async def _take_scores(self, scored: "Scored") -> None:
        del self._unscored[scored.prompt]
        if scored.scores.error:
            raise ApiError(500, scored.scores.error, SERVER)
        mine = [choice for choice in self.choices if choice.index // self.job.num_choices == scored.prompt]
        prompt = self.job.prompts[scored.prompt]
        # a long prompt has many labels
        placed = await asyncio.to_thread(place_prompt, prompt, scored.scores.logprobs, self._desk.tokenizer)
        for choice in mine:
            choice.prompt_logprobs = placed

    async def _update(self) -> tuple[int, Update]:
        arrived = await self._arrived.get()
        if isinstance(arrived, ApiError):
            raise arrived
        assert not isinstance(arrived, Scored)
        return arrived

    def _unscored_prompt(self, number: int, prompt: Prompt) -> Unscored:
        def hear(scores: PromptScores) -> None:
            self._arrived.put_nowait(Scored(number, scores))

        return Unscored(prompt.token_ids, self.job.num_logprobs or 0, hear)

    def _watcher(self, index: int) -> Watcher:
        def hear(update: Update) -> None:
            self._arrived.put_nowait((index, update))

        return Watcher(hear, self.job.num_logprobs, self.job.wants_trace)


def _failure(update: Update) -> ApiError:
    if update.is_refusal:
        return ApiError(400, update.error)
    return ApiError(500, update.error, SERVER)
