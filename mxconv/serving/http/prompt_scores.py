"""Logprobs of prompts, for clients that want them echoed: one at a time, a piece between two steps of the engine."""

from collections.abc import Callable
from dataclasses import dataclass

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.errors import MxconvError
from mxconv.serving.http.api_error import SERVER, ApiError
from mxconv.serving.http.logprobs import TokenLogprobs, token_logprobs

MOST_ROWS = 32  # of a piece, for which running sequences wait

Scores = list[TokenLogprobs] | ApiError  # of every token but the first, or why there are none


@dataclass(eq=False)
class Unscored:
    """A prompt whose logprobs a client wants. `hear` is called in the event loop."""

    tokens: list[int]
    num_top: int
    hear: Callable[[Scores], None]


class Scorer:
    """Prompts in the order in which they came. Used by the engine's thread alone.

    A prompt is evaluated once more, with the logits of all rows, in a cache of its own. Rows depend on their path
    alone: the logits are those that would have chosen these tokens, bit for bit.

    Args:
        decoder: of the target.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._waiting: list[Unscored] = []
        self._cache: KVCache | None = None  # of the first
        self._logprobs: list[TokenLogprobs] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def add(self, prompt: Unscored) -> None:
        self._waiting.append(prompt)

    def drop(self, prompt: Unscored) -> None:
        """Forget a prompt that nobody wants any more."""
        if self._waiting and self._waiting[0] is prompt:
            self._end()
        elif prompt in self._waiting:
            self._waiting.remove(prompt)

    def drop_all(self) -> list[Unscored]:
        """Forget the prompts that wait, and return them."""
        dropped = list(self._waiting)
        self._waiting.clear()
        self._cache = None
        return dropped

    def step(self) -> tuple[Unscored, Scores] | None:
        """Evaluate a piece of the first prompt; returns its scores where that was the last piece."""
        prompt = self._waiting[0]
        scores: Scores = self._logprobs
        last = len(prompt.tokens) - 1
        try:
            if self._cache is None:
                self._cache = self._decoder.new_cache()
            begin = self._cache.length
            if begin < last:
                end = min(begin + MOST_ROWS, last)
                logits = self._decoder.forward(prompt.tokens[begin:end], self._cache)
                following = prompt.tokens[begin + 1 : end + 1]
                self._logprobs += [
                    token_logprobs(row, token, prompt.num_top) for row, token in zip(logits, following, strict=True)
                ]
            if self._cache.length < last:
                return None
        except MxconvError as error:
            scores = ApiError(500, str(error), SERVER)
        self._end()
        return prompt, scores

    def _end(self) -> None:
        self._waiting.pop(0)
        self._cache, self._logprobs = None, []
