"""The thread that owns the engine: the event loop submits and drops sequences, and gets updates of every step."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from mxconv.errors import MxconvError
from mxconv.serving.http.api_error import SERVER, ApiError
from mxconv.serving.http.logprobs import TokenLogprobs, token_logprobs
from mxconv.serving.http.prompt_scores import Scorer, Unscored
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request, Sequence

log = logging.getLogger("mxconv.serving")


@dataclass(frozen=True)
class NewToken:
    """A token that the target decided; `guessed_by` names the level that had proposed it."""

    token: int
    guessed_by: str | None
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class Update:
    """The result of a step for one sequence.

    Args:
        tokens: in order; none where it only ended.
        ending: why there will be no more: "stop" or "length"; None while there may be, and with an error.
        error: why there will be no more, where something went wrong.
        levels: name, `num_proposed` and `num_accepted` of each draft so far; empty where no trace is wanted.
    """

    tokens: list[NewToken] = field(default_factory=list)
    ending: str | None = None
    error: ApiError | None = None
    levels: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Watcher:
    """A receiver of a sequence's updates. `hear` is called in the event loop."""

    hear: Callable[[Update], None]
    num_logprobs: int | None = None
    wants_trace: bool = False
    sequence: Sequence | None = None  # set and read by the engine's thread alone


class EngineThread:
    """Steps an engine while it has work, and sleeps while it has none.

    Args:
        engine: used by this thread alone from now on.
        scorer: likewise.
    """

    def __init__(self, engine: Engine, scorer: Scorer) -> None:
        self.engine = engine
        self._scorer = scorer
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._watchers: dict[Sequence, Watcher] = {}
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: str | None = None  # why it will never step again

    def start(self) -> None:
        """Start from within the event loop that gets the updates."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request, watcher: Watcher) -> None:
        """Decode; the watcher gets updates until one has an ending or an error, or it is forgotten."""
        self._inbox.put(partial(self._submit, request, watcher))

    def score(self, prompt: Unscored) -> None:
        """Score a prompt, unless it is forgotten before."""
        self._inbox.put(partial(self._score, prompt))

    def forget(self, watched: Watcher | Unscored) -> None:
        """Drop its sequence, or its scores, before the next step, if it still has some."""
        self._inbox.put(partial(self._forget, watched))

    @property
    def num_watched(self) -> int:
        """Sequences whose updates somebody gets, as far as this thread knows."""
        return len(self._watchers)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.engine.is_idle and self._scorer.is_idle

    @property
    def is_alive(self) -> bool:
        """Whether a step may still be reading weights."""
        return self._thread.is_alive()

    @property
    def failed(self) -> ApiError:
        """The error of requests that come after a failure."""
        return ApiError(503, f"The engine failed ({self.failure}). Start the server again.", SERVER)

    def stop(self, seconds: float) -> None:
        """Let the step that runs end, take no other, and wait for it at most so long."""
        self._inbox.put(self._stop)
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stops:
                while not self._stops and (self.is_idle or not self._inbox.empty()):
                    self._inbox.get()()
                if not (self._stops or self.engine.is_idle):
                    self._step()
                if not (self._stops or self._scorer.is_idle) and (scored := self._scorer.step()) is not None:
                    self._tell([partial(scored[0].hear, scored[1])])
        except BaseException as error:  # a defect: every request that waits, and every later one, gets an error
            log.error("the engine failed:\n%s", traceback.format_exc())
            self.failure = f"{type(error).__name__}: {error}"
            failed = ApiError(500, f"The engine failed ({self.failure}). Start the server again.", SERVER)
            watchers, self._watchers = self._watchers.values(), {}
            self._tell([partial(watcher.hear, Update(error=failed)) for watcher in watchers])
            self._tell([partial(prompt.hear, failed) for prompt in self._scorer.drop_all()])
            while not self._stops:
                self._inbox.get()()

    def _submit(self, request: Request, watcher: Watcher) -> None:
        if self.failure is not None:
            self._tell([partial(watcher.hear, Update(error=self.failed))])
            return
        try:
            watcher.sequence = self.engine.submit(request)
        except MxconvError as error:
            self._tell([partial(watcher.hear, Update(error=ApiError(400, str(error))))])
            return
        self._watchers[watcher.sequence] = watcher

    def _score(self, prompt: Unscored) -> None:
        if self.failure is None:
            self._scorer.add(prompt)
        else:
            self._tell([partial(prompt.hear, self.failed)])

    def _forget(self, watched: Watcher | Unscored) -> None:
        if isinstance(watched, Unscored):
            self._scorer.drop(watched)
        elif watched.sequence in self._watchers:
            del self._watchers[watched.sequence]
            self.engine.cancel(watched.sequence)

    def _stop(self) -> None:
        self._stops = True

    def _step(self) -> None:
        new: dict[Sequence, list[NewToken]] = {}
        for each in self.engine.step():
            if watcher := self._watchers.get(each.sequence):
                count = watcher.num_logprobs
                logprobs = None if count is None else token_logprobs(each.logits, each.token, count)
                new.setdefault(each.sequence, []).append(NewToken(each.token, each.guessed_by, logprobs))
        news: list[Callable[[], None]] = []
        for sequence, watcher in list(self._watchers.items()):
            tokens = new.get(sequence, [])
            if sequence.is_done:
                del self._watchers[sequence]
            if tokens or sequence.is_done:
                news.append(partial(watcher.hear, _update(sequence, tokens, watcher.wants_trace)))
        if news:
            self._tell(news)

    def _tell(self, news: list[Callable[[], None]]) -> None:
        """Have these called in the event loop."""

        def hear() -> None:
            for one in news:
                one()

        try:
            self._loop.call_soon_threadsafe(hear)
        except RuntimeError:  # the loop is closed: nobody gets updates any more
            self._stops = True


def _update(sequence: Sequence, tokens: list[NewToken], wants_trace: bool) -> Update:
    """The update after a step that decided these tokens."""
    drafts = sequence.generation.trace.statistics[1:] if wants_trace else []
    counts = ("name", "num_proposed", "num_accepted")
    levels = [{name: getattr(level, name) for name in counts} for level in drafts]
    if sequence.error is not None:
        return Update(tokens, error=ApiError(500, str(sequence.error), SERVER), levels=levels)
    return Update(tokens, sequence.generation.ending if sequence.is_done else None, levels=levels)
