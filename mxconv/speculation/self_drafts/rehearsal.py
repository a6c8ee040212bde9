"""What a variant of the target would have said where the level above has spoken already."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.borrowed import borrowed
from mxconv.speculation.rules.coupled import CoupledAcceptance
from mxconv.speculation.session import Session
from mxconv.text.sampling import greedy

MOST_TOKENS = 16  # rows of one pass
FEWEST_TOKENS = 4


@dataclass(frozen=True)
class Rehearsal:
    """The last tokens of a text, behind keys and values that are there.

    Args:
        session: the cache, and its tokens.
        start: position of the first token to evaluate.
        tokens: those to evaluate and one more: `tokens[i + 1]` is what the level above said after `tokens[i]`.
    """

    session: Session
    start: int
    tokens: Sequence[int]

    @classmethod
    def of(cls, session: Session, context: Sequence[int], first_written: int) -> "Rehearsal | None":
        """The end of a context as far as a session has it; None while that is too little.

        Args:
            session: of which the context is a continuation, or it is None.
            context: all tokens so far.
            first_written: position of the first token that the level above has chosen.
        """
        stop = len(session.tokens)
        if not stop < len(context) or list(context[:stop]) != session.tokens:
            return None
        start = max(first_written - 1, stop - MOST_TOKENS, 0)
        if stop - start < FEWEST_TOKENS or session.cache.reachable(start) < start:
            return None
        return cls(session, start, context[start : stop + 1])

    @property
    def num_tokens(self) -> int:
        """How many are compared."""
        return len(self.tokens) - 1

    def agreed(self, decoder: Decoder, acceptance: Acceptance, vocab_size: int) -> int:
        """How many of the tokens a decoder would have chosen, each behind the ones before it; one pass.

        The cache is left as it was. Draws that hear common noise are compared with the text; where each level draws for
        itself, the likeliest tokens are.
        """
        with borrowed(self.session.cache, self.start, self.num_tokens) as cache:
            rows = SequenceRows(self.tokens[:-1], cache)
            logits = self.session.passes.forward(decoder, rows)[:, :vocab_size]
        if (penalties := acceptance.penalties) is not None:
            before, behind = self.session.tokens[: self.start], self.tokens
            logits = np.stack([penalties.row(row, before, behind[: place + 1]) for place, row in enumerate(logits)])
        choices = self._choices(logits, acceptance)
        return sum(ours == theirs for ours, theirs in zip(choices, self.tokens[1:], strict=True))

    def _choices(self, logits: F32, acceptance: Acceptance) -> list[int]:
        if isinstance(acceptance, CoupledAcceptance):
            return [acceptance.draw(row, self.start + 1 + place) for place, row in enumerate(logits)]
        return [int(token) for token in np.atleast_1d(greedy(logits))]
