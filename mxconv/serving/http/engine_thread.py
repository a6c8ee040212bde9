"""The thread that owns the engine. The event loop asks it to take and to drop sequences, and hears of every step."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from mxconv.errors import MxconvError
from mxconv.serving.engine import Engine
from mxconv.serving.http.logprobs import TokenLogprobs, token_logprobs
from mxconv.serving.request import Request
from mxconv.serving.sequence import Decided, Sequence
from mxconv.speculative.statistics import LevelStatistics

log = logging.getLogger("mxconv.serving")


@dataclass(frozen=True)
class NewToken:
    """A token that the target decided; `guessed_by` names the level that had proposed it."""

    token: int
    guessed_by: str | None
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class LevelCount:
    """What a level proposed to the one above so far, and what stood."""

    name: str
    num_proposed: int
    num_accepted: int


@dataclass(frozen=True)
class Update:
    """What a step did to one sequence.

    Args:
        tokens: in order; none where it only ended.
        ending: why there will be no more: "stop", "length" or "error"; None while there may be.
        error: what went wrong, with the ending "error".
        is_refusal: whether the request was to blame.
        levels: counts of all drafts; empty where nobody asks.
    """

    tokens: list[NewToken] = field(default_factory=list)
    ending: str | None = None
    error: str = ""
    is_refusal: bool = False
    levels: list[LevelCount] = field(default_factory=list)


@dataclass(eq=False)
class Watcher:
    """Who wants to hear of a sequence, and what. `hear` is called in the event loop."""

    hear: Callable[[Update], None]
    num_logprobs: int | None = None
    wants_trace: bool = False


class EngineThread:
    """Steps an engine while it has work, and sleeps while it has none.

    Args:
        engine: used by this thread alone from now on.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
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

    def forget(self, watcher: Watcher) -> None:
        """Drop its sequence before the next step, if it still has one."""
        self._inbox.put(lambda: self._forget(watcher))

    @property
    def num_watched(self) -> int:
        """Sequences that somebody waits for, as far as this thread knows."""
        return len(self._watchers)

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
        except BaseException as error:  # a defect: say so to everyone who waits, and to those who come
            log.error("the engine failed:\n%s", traceback.format_exc())
            self.failure = f"{type(error).__name__}: {error}"
            failed = Update(ending="error", error=f"The engine failed ({self.failure}). Start the server again.")
            self._tell([(watcher, failed) for watcher in self._sequences])
            self._refuse_orders()

    def _refuse_orders(self) -> None:
        self._sequences.clear()
        while not self._stops:
            self._inbox.get()()

    def _take_orders(self) -> None:
        while not self._stops and (self.engine.is_idle or not self._inbox.empty()):
            self._inbox.get()()

    def _submit(self, request: Request, watcher: Watcher) -> None:
        if self.failure is not None:
            self._tell([(watcher, Update(ending="error", error=f"The engine failed ({self.failure})."))])
            return
        try:
            sequence = self.engine.submit(request)
        except MxconvError as error:
            self._tell([(watcher, Update(ending="error", error=str(error), is_refusal=True))])
            return
        self._watchers[sequence] = watcher
        self._sequences[watcher] = sequence

    def _forget(self, watcher: Watcher) -> None:
        if sequence := self._sequences.pop(watcher, None):
            del self._watchers[sequence]
            self.engine.cancel(sequence)

    def _stop(self) -> None:
        self._stops = True

    def _step(self) -> None:
        new: dict[Sequence, list[NewToken]] = {}
        for decided in self.engine.step():
            if watcher := self._watchers.get(decided.sequence):
                new.setdefault(decided.sequence, []).append(_new_token(decided, watcher))
        updates = []
        for sequence, watcher in list(self._watchers.items()):
            tokens = new.get(sequence, [])
            if sequence.is_done:
                del self._watchers[sequence], self._sequences[watcher]
            if tokens or sequence.is_done:
                updates.append((watcher, _update(sequence, tokens, watcher.wants_trace)))
        if updates:
            self._tell(updates)

    def _tell(self, updates: list[tuple[Watcher, Update]]) -> None:
        def hear() -> None:
            for watcher, update in updates:
                watcher.hear(update)

        try:
            self._loop.call_soon_threadsafe(hear)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._stops = True


def _new_token(decided: Decided, watcher: Watcher) -> NewToken:
    logprobs = None
    if watcher.num_logprobs is not None:
        logprobs = token_logprobs(decided.logits, decided.token, watcher.num_logprobs)
    return NewToken(decided.token, decided.guessed_by, logprobs)


def _update(sequence: Sequence, tokens: list[NewToken], wants_trace: bool) -> Update:
    levels = [_count(level) for level in sequence.generation.trace.statistics[1:]] if wants_trace else []
    if not sequence.is_done:
        return Update(tokens, levels=levels)
    if sequence.error is not None:
        return Update(tokens, "error", str(sequence.error), levels=levels)
    return Update(tokens, sequence.generation.ending, levels=levels)


def _count(level: LevelStatistics) -> LevelCount:
    return LevelCount(level.name, level.num_proposed, level.num_accepted)
