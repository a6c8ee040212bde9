"""The thread that owns the engine. The event loop asks it to take and to drop sequences, and hears of every step."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from mxconv.errors import MxconvError
from mxconv.serving.engine import Engine
from mxconv.serving.http.prompt_scores import PromptScores, Scorer, Unscored
from mxconv.serving.http.updates import NewToken, Update, Watcher, new_token, update_of
from mxconv.serving.request import Request
from mxconv.serving.sequence import Sequence

log = logging.getLogger("mxconv.serving")


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
        self._sequences: dict[Watcher, Sequence] = {}
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: str | None = None  # why it will never step again

    def start(self) -> None:
        """From within the event loop that hears of steps."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request, watcher: Watcher) -> None:
        """Decode; the watcher hears of it until an update has an ending, or it is forgotten."""
        self._inbox.put(lambda: self._submit(request, watcher))

    def score(self, prompt: Unscored) -> None:
        """Let it hear its scores, unless it is forgotten before."""
        self._inbox.put(lambda: self._score(prompt))

    def forget(self, watched: Watcher | Unscored) -> None:
        """Drop its sequence, or its scores, before the next step, if it still has some."""
        self._inbox.put(lambda: self._forget(watched))

    @property
    def num_watched(self) -> int:
        """Sequences that somebody waits for, as far as this thread knows."""
        return len(self._watchers)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.engine.is_idle and self._scorer.is_idle

    @property
    def is_alive(self) -> bool:
        """Whether a step may still be reading weights."""
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """Let the step that runs end, take no other, and wait for it at most so long."""
        self._inbox.put(self._stop)
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stops:
                self._take_orders()
                if not (self._stops or self.engine.is_idle):
                    self._step()
                if not (self._stops or self._scorer.is_idle):
                    self._score_on()
        except BaseException as error:  # a defect: say so to everyone who waits, and to those who come
            log.error("the engine failed:\n%s", traceback.format_exc())
            self.failure = f"{type(error).__name__}: {error}"
            said = f"The engine failed ({self.failure}). Start the server again."
            self._tell([partial(watcher.hear, Update(ending="error", error=said)) for watcher in self._sequences])
            self._tell([partial(prompt.hear, PromptScores(error=said)) for prompt in self._scorer.drop_all()])
            self._refuse_orders()

    def _refuse_orders(self) -> None:
        self._sequences.clear()
        while not self._stops:
            self._inbox.get()()

    def _take_orders(self) -> None:
        while not self._stops and (self.is_idle or not self._inbox.empty()):
            self._inbox.get()()

    def _submit(self, request: Request, watcher: Watcher) -> None:
        if self.failure is not None:
            failed = Update(ending="error", error=f"The engine failed ({self.failure}).")
            self._tell([partial(watcher.hear, failed)])
            return
        try:
            sequence = self.engine.submit(request)
        except MxconvError as error:
            refused = Update(ending="error", error=str(error), is_refusal=True)
            self._tell([partial(watcher.hear, refused)])
            return
        self._watchers[sequence] = watcher
        self._sequences[watcher] = sequence

    def _score(self, prompt: Unscored) -> None:
        if self.failure is None:
            self._scorer.add(prompt)
        else:
            self._tell([partial(prompt.hear, PromptScores(error=f"The engine failed ({self.failure})."))])

    def _score_on(self) -> None:
        if (scored := self._scorer.step()) is not None:
            prompt, scores = scored
            self._tell([partial(prompt.hear, scores)])

    def _forget(self, watched: Watcher | Unscored) -> None:
        if isinstance(watched, Unscored):
            self._scorer.drop(watched)
        elif sequence := self._sequences.pop(watched, None):
            del self._watchers[sequence]
            self.engine.cancel(sequence)

    def _stop(self) -> None:
        self._stops = True

    def _step(self) -> None:
        new: dict[Sequence, list[NewToken]] = {}
        for decided in self.engine.step():
            if watcher := self._watchers.get(decided.sequence):
                new.setdefault(decided.sequence, []).append(new_token(decided, watcher))
        updates: list[Callable[[], None]] = []
        for sequence, watcher in list(self._watchers.items()):
            tokens = new.get(sequence, [])
            if sequence.is_done:
                del self._watchers[sequence], self._sequences[watcher]
            if tokens or sequence.is_done:
                updates.append(partial(watcher.hear, update_of(sequence, tokens, watcher.wants_trace)))
        if updates:
            self._tell(updates)

    def _tell(self, news: list[Callable[[], None]]) -> None:
        """Have these called in the event loop."""

        def hear() -> None:
            for one in news:
                one()

        try:
            self._loop.call_soon_threadsafe(hear)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._stops = True
