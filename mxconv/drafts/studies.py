"""What a variant of the target would have said where the level above has spoken already."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance, CoupledAcceptance
from mxconv.drafts.running_mean import MOST_UNUSUAL, RunningMean
from mxconv.drafts.session import Session, borrowed
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.text.distribution import greedy

SHARE_TO_STUDY = 0.05  # of the time that decoding takes
FIRST_ROUNDS = 6.0  # worth of study before anything was saved up


class StudyBudget:
    """An account in seconds. Rounds pay in, studies draw; nothing is begun that is not expected to be covered.

    Args:
        share: of the seconds of decoding.
        first_rounds: what there is from the start, in rounds of usual length.
    """

    def __init__(self, share: float = SHARE_TO_STUDY, first_rounds: float = FIRST_ROUNDS) -> None:
        self._share = share
        self._first_rounds = first_rounds
        self._round = RunningMean()
        self._study = RunningMean()
        self._saved = 0.0
        self.decoding_seconds = 0.0
        self.study_seconds = 0.0

    def pay(self, seconds: float) -> None:
        """A round of decoding took so long, without its study. A pause of others counts little."""
        if self._round.weight:
            seconds = min(seconds, MOST_UNUSUAL * self._round.value)
        self._round.fade()
        self._round.add(seconds)
        self.decoding_seconds += seconds
        self._saved += self._share * seconds

    @property
    def allows(self) -> bool:
        """Whether another study is covered; one that was never measured is believed to take as long as a round."""
        return self._round.weight > 0 and self._first_rounds * self._round.value + self._saved >= self._expected

    def spend(self, seconds: float) -> None:
        """A study has taken so long; what takes far longer than expected was interrupted by somebody else."""
        booked = min(seconds, MOST_UNUSUAL * self._expected)
        self._study.fade()
        self._study.add(booked)
        self.study_seconds += seconds
        self._saved -= booked

    @property
    def _expected(self) -> float:
        """Seconds of a study."""
        return self._study.value if self._study.weight else self._round.value


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
