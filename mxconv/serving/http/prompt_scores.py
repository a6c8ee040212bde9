"""Logprobs of prompts, for those who want them echoed: one at a time, a piece between two steps of the engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mxconv.engine.decoder import Decoder
from mxconv.errors import MxconvError
from mxconv.serving.http.logprobs import TokenLogprobs, token_logprobs
from mxconv.serving.prompt_scoring import PromptScoring


@dataclass(frozen=True)
class PromptScores:
    """Of one prompt.

    Args:
        logprobs: of every token but the first.
        error: why there are none; empty where there are.
    """

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: str = ""


@dataclass(eq=False)
class Unscored:
    """A prompt whose logprobs somebody wants. `hear` is called in the event loop."""

    tokens: list[int]
    num_top: int
    hear: Callable[[PromptScores], None]


class Scorer:
    """Prompts in the order in which they came. Used by the engine's thread alone.

    Args:
        decoder: of the target.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._waiting: list[Unscored] = []
        self._scoring: PromptScoring | None = None  # of the first
        self._logprobs: list[TokenLogprobs] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def add(self, prompt: Unscored) -> None:
        self._waiting.append(prompt)

    def drop(self, prompt: Unscored) -> None:
        """Nobody wants them any more."""
        if self._waiting and self._waiting[0] is prompt:
            self._end()
        elif prompt in self._waiting:
            self._waiting.remove(prompt)

    def drop_all(self) -> list[Unscored]:
        """Those that wait."""
        dropped = list(self._waiting)
        self._waiting.clear()
        self._scoring = None
        return dropped

    def step(self) -> tuple[Unscored, PromptScores] | None:
        """A piece of the first prompt; its scores where that was the last."""
        prompt = self._waiting[0]
        try:
            if self._scoring is None:
                self._scoring = PromptScoring(self._decoder, prompt.tokens)
            if not self._scoring.is_done:
                piece = self._scoring.piece()
                self._logprobs += [token_logprobs(logits, token, prompt.num_top) for token, logits in piece]
            if not self._scoring.is_done:
                return None
            scores = PromptScores(self._logprobs)
        except MxconvError as error:
            scores = PromptScores(error=str(error))
        self._end()
        return prompt, scores

    def _end(self) -> None:
        """The first is over."""
        self._waiting.pop(0)
        self._scoring, self._logprobs = None, []
