"""The thread that owns the engines: the event loop submits and drops sequences, and gets updates of every step."""

import asyncio
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from mxconv.errors import MxconvError
from mxconv.serving.http.api_error import SERVER, ApiError
from mxconv.serving.http.logprobs import TokenLogprobs, prompt_logprobs, token_logprobs
from mxconv.serving.http.served import ServedModel
from mxconv.serving.llm_engine import Decided, Engine
from mxconv.serving.sequence import Sequence
from mxconv.speculation.selection import Request
from mxconv.text.constraint import ConstraintError

log = logging.getLogger("mxconv.serving")
LEVEL_COUNTS = ("name", "num_proposed", "num_accepted")


@dataclass
class ReplyToken:
    """A token of an answer or of an echoed prompt: as the target decided it, and then as clients see it.

    Args:
        id: of the vocabulary.
        guessed_by: the level that had proposed it; None is the target itself.
        found: its logprobs; None where none are wanted, and of a text's first token, which nothing predicts.
        text: what became certain with it: often its own, now and then none or that of several.
        offset: characters of the choice's text before it.
        logprobs: OpenAI's object; empty where none is wanted.
    """

    id: int
    guessed_by: str | None = None
    found: TokenLogprobs | None = None
    text: str = ""
    offset: int = 0
    logprobs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """The result of a step for one sequence, or the scored tokens of a prompt.

    Args:
        tokens: in order; none where it only ended.
        ending: why there will be no more: "stop" or "length"; None while there may be, and with an error.
        error: why there will be no more, where something went wrong.
        levels: name, `num_proposed` and `num_accepted` of each draft so far; empty where no trace is wanted.
    """

    tokens: list[ReplyToken] = field(default_factory=list)
    ending: str | None = None
    error: ApiError | None = None
    levels: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class Watcher:
    """A receiver of a sequence's updates, or of one with all tokens of a prompt; called in the event loop."""

    on_update: Callable[[Update], None]
    served: ServedModel
    num_logprobs: int | None = None
    wants_trace: bool = False
    sequence: Sequence | None = None  # set and read by the engine's thread alone, like the next two
    tokens: list[ReplyToken] = field(default_factory=list)  # of a prompt, scored so far
    pieces: Iterator[list[ReplyToken]] | None = None  # that compute the others


class EngineThread:
    """Steps engines that have work in turns, and sleeps while none has; scores prompts between steps, one at a time.

    Beside others, an engine whose passes wait for a disk takes each step in a thread of its own, and no turns are lost.

    Args:
        engines: used by this thread alone from now on, like the decoders of prompts.
    """

    def __init__(self, engines: Iterable[Engine]) -> None:
        self.engines = list(engines)  # the one whose last step is the longest ago comes first
        self.failure: str | None = None  # why it will never step again
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._watchers: dict[Sequence, Watcher] = {}
        self._unscored: list[Watcher] = []  # of prompts, the next one first
        self._apart: dict[Engine, list[Callable[[], None]]] = {}  # engines in such a step, and what waits for its end
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start from within the event loop that gets the updates."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request, watcher: Watcher) -> None:
        """Decode; the watcher gets updates until one has an ending or an error, or it is forgotten."""

        def submit_here() -> None:
            watcher.sequence = sequence = watcher.served.engine.submit(request)
            self._watchers[sequence] = watcher

        self._begin(watcher, submit_here, watcher.served.engine)

    def score(self, prompt: list[int], watcher: Watcher) -> None:
        """Score a prompt, after those that came before, unless the watcher is forgotten."""
        watcher.pieces = _scored(prompt, watcher)
        self._begin(watcher, lambda: self._unscored.append(watcher))

    def _begin(self, watcher: Watcher, begin: Callable[[], None], engine: Engine | None = None) -> None:
        def begin_here() -> None:
            if self.failure is not None:
                self._tell(watcher, Update(error=self.failed))
                return
            try:
                begin()
            except MxconvError as error:
                self._tell(watcher, Update(error=ApiError(400, str(error))))

        self._inbox.put(begin_here if engine is None else partial(self._at_rest, engine, begin_here))

    def forget(self, watcher: Watcher) -> None:
        """Drop its sequence, or its prompt, before the next step, if it still has one."""

        def forget_here() -> None:
            self._unscored = [other for other in self._unscored if other is not watcher]
            if watcher.sequence in self._watchers:
                del self._watchers[watcher.sequence]
                watcher.served.engine.cancel(watcher.sequence)

        self._inbox.put(partial(self._at_rest, watcher.served.engine, forget_here))

    def _at_rest(self, engine: Engine, act: Callable[[], None]) -> None:
        """Act on an engine at once, or when its step apart ends."""
        if engine in self._apart:
            self._apart[engine].append(act)
        else:
            act()

    @property
    def num_watched(self) -> int:
        """Sequences whose updates somebody gets, as far as this thread knows."""
        return len(self._watchers)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return all(engine.is_idle for engine in self.engines) and not self._unscored and not self._apart

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
        self._inbox.put(partial(setattr, self, "_stops", True))
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stops:
                while not self._stops and (not self._inbox.empty() or not (self._next() or self._unscored)):
                    self._inbox.get()()
                engine = self._next()
                if engine is not None and not self._stops:
                    self._step(engine)
                if self._unscored and not self._stops:
                    self._score(self._unscored[0])
            while self._apart:
                self._inbox.get()()
        except BaseException as error:  # a defect: every request that waits, and every later one, gets an error
            log.error("the engine failed:\n%s", traceback.format_exc())
            self.failure = f"{type(error).__name__}: {error}"
            failed = ApiError(500, f"The engine failed ({self.failure}). Start the server again.", SERVER)
            for watcher in (*self._watchers.values(), *self._unscored):
                self._tell(watcher, Update(error=failed))
            self._watchers.clear()
            self._unscored.clear()
            while not self._stops:
                self._inbox.get()()

    def _step(self, engine: Engine) -> None:
        self.engines = [*(other for other in self.engines if other is not engine), engine]
        if engine.reads_ahead and len(self.engines) > 1:
            self._apart[engine] = []
            threading.Thread(target=self._step_apart, args=[engine], name="engine apart", daemon=True).start()
        else:
            self._tell_all(engine, engine.step())

    def _step_apart(self, engine: Engine) -> None:
        try:
            decided = engine.step()
        except BaseException as error:
            self._inbox.put(partial(self._end_apart, engine, [], error))
        else:
            self._inbox.put(partial(self._end_apart, engine, decided))

    def _end_apart(self, engine: Engine, decided: list[Decided], error: BaseException | None = None) -> None:
        waiting = self._apart.pop(engine)
        if self.failure is not None:
            return
        if error is not None:
            raise error
        self._tell_all(engine, decided)
        for act in waiting:
            act()

    def _next(self) -> Engine | None:
        """The engine that has work, of those at rest."""
        return next((each for each in self.engines if each not in self._apart and not each.is_idle), None)

    def _tell_all(self, engine: Engine, decided: list[Decided]) -> None:
        """Tell the watchers of an engine's sequences what a step has decided, and that some are done."""
        new: dict[Sequence, list[ReplyToken]] = {}
        for each in decided:
            if watcher := self._watchers.get(each.sequence):
                count = watcher.num_logprobs
                found = None if count is None else token_logprobs(each.logits, each.token, count)
                new.setdefault(each.sequence, []).append(ReplyToken(each.token, each.guessed_by, found))
        for sequence, watcher in list(self._watchers.items()):
            if watcher.served.engine is not engine:
                continue
            if sequence.is_done:
                del self._watchers[sequence]
            if sequence in new or sequence.is_done:
                self._tell(watcher, _update(sequence, new.get(sequence, []), watcher.wants_trace))

    def _score(self, watcher: Watcher) -> None:
        """Evaluate a piece of a prompt; after the last one, give the watcher its tokens."""
        assert watcher.pieces is not None
        try:
            if (piece := next(watcher.pieces, None)) is not None:
                watcher.tokens += piece
                return
            update = Update(watcher.tokens)
        except MxconvError as error:
            update = Update(error=ApiError(500, str(error), SERVER))
        self._unscored.remove(watcher)
        self._tell(watcher, update)

    def _tell(self, watcher: Watcher, update: Update) -> None:
        """Give a watcher an update, in the event loop."""
        try:
            self._loop.call_soon_threadsafe(watcher.on_update, update)
        except RuntimeError:  # the loop is closed: nobody gets updates any more
            self._stops = True


def _scored(prompt: list[int], watcher: Watcher) -> Iterator[list[ReplyToken]]:
    """Yield the tokens of a prompt, some at a time, all but the first with logprobs."""
    yield [ReplyToken(prompt[0])]
    rest = iter(prompt[1:])
    for piece in prompt_logprobs(watcher.served.decoder, prompt, watcher.num_logprobs or 0):
        yield [ReplyToken(next(rest), None, found) for found in piece]


def _update(sequence: Sequence, tokens: list[ReplyToken], wants_trace: bool) -> Update:
    """The update after a step that decided these tokens."""
    drafts = sequence.generation.trace.statistics[1:] if wants_trace else []
    levels = [{name: getattr(level, name) for name in LEVEL_COUNTS} for level in drafts]
    if sequence.error is not None:
        is_clients = isinstance(sequence.error, ConstraintError)
        error = ApiError(400, str(sequence.error)) if is_clients else ApiError(500, str(sequence.error), SERVER)
        return Update(tokens, error=error, levels=levels)
    return Update(tokens, sequence.generation.ending if sequence.is_done else None, levels=levels)
