"""A text while it is decoded: rounds of the target, until it ends."""

from collections.abc import Collection, Sequence

from mxconv.drafts.statistics import Trace
from mxconv.speculation.generation import Ending, Step
from mxconv.speculation.level import Level


class Decoding:
    """Rounds after a context.

    Args:
        target: with its drafts, for this text alone.
        context: the tokens that there are.
        max_length: tokens at which the text ends.
        stop_tokens: ids that end it too, once the target has said one.
        trace: of the text.
    """

    def __init__(
        self, target: Level, context: Sequence[int], max_length: int, stop_tokens: Collection[int], trace: Trace
    ) -> None:
        self.target = target
        self.context = list(context)
        self.ending: Ending | None = None
        self._max_length = min(max_length, target.decoder.config.max_position_embeddings + 1)
        self._stop_tokens = stop_tokens
        self._trace = trace

    @property
    def is_prompt(self) -> bool:
        """Whether the target has not evaluated the context but for the last token."""
        return len(self.target.session.tokens) < len(self.context) - 1

    def round(self) -> Step:
        """One more: its tokens, up to and with the first that ends the text."""
        self._trace.begin_round()
        # the context goes through the target alone: a shared cache must hold its own keys and values
        step = self.target.step(self.context, 1 if self.is_prompt else self._max_length - len(self.context))
        self._trace.end_round()
        step = step.until(self._stop_tokens)
        self.context += step.tokens
        if self.context[-1] in self._stop_tokens:
            self.ending = "stop"
        elif len(self.context) >= self._max_length:
            self.ending = "length"
        return step
