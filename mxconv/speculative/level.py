"""A level of the hierarchy: a model that verifies what its draft proposes, and is itself a draft for the level above.

Recursion does the rest. `step` is one speculative round; `propose` repeats it until the level above has what it wants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np

from mxconv.arrays import F32
from mxconv.model.decoder import Decoder
from mxconv.model.sampling import greedy
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics


class Draft(Protocol):
    """Whatever can guess how a context goes on."""

    @property
    def statistics(self) -> LevelStatistics: ...

    def propose(self, context: Sequence[int], num_tokens: int) -> list[int]:
        """At most `num_tokens` tokens that may follow; fewer, or none, where confidence is low.

        Whatever caches the draft touched are left fit for a continuation of `context` that differs.
        """
        ...


@dataclass(frozen=True)
class Step:
    """The outcome of one round: tokens that this level itself would have chosen, with the logits that chose them."""

    tokens: list[int]
    logits: F32  # (len(tokens), vocab_size)


@dataclass(frozen=True)
class Level:
    """A model with its cache and, where it has one, its draft.

    Args:
        decoder: the model.
        session: its cache; where it shares the target's, that very session.
        shares_session: whether it does, and must leave it as it was found.
        num_draft_tokens: how many tokens it asks of its draft in a round.
        confidence: as a draft, it stops behind the first token whose probability is below.
        statistics: what it did.
        draft: the next cheaper level.
    """

    decoder: Decoder
    session: Session
    shares_session: bool
    num_draft_tokens: int
    confidence: float
    statistics: LevelStatistics
    draft: "Draft | None" = None

    def step(self, context: Sequence[int], max_tokens: int) -> Step:
        """One round: let the draft propose, verify all of it in one forward pass, keep what agrees and one more.

        Args:
            context: all tokens so far, at least one.
            max_tokens: the most tokens to return, at least one.
        """
        proposed: list[int] = []
        if self.draft is not None:
            room = self.decoder.config.max_position_embeddings - len(context)
            wanted = min(self.num_draft_tokens, max_tokens - 1, room)
            if wanted > 0:
                proposed = self._admissible(self.draft.propose(context, wanted)[:wanted])
        return self._verify(context, proposed)

    def propose(self, context: Sequence[int], num_tokens: int) -> list[int]:
        """Rounds until there are `num_tokens`, or one was chosen without confidence."""
        base = len(self.session.tokens)
        room = self.decoder.config.max_position_embeddings - len(context)
        tokens: list[int] = []
        confident = True
        while confident and len(tokens) < min(num_tokens, room + 1):
            step = self.step([*context, *tokens], num_tokens - len(tokens))
            for token, logits in zip(step.tokens, step.logits, strict=True):
                tokens.append(token)
                confident = _probability(logits, token) >= self.confidence
                if not confident:
                    break
        if self.shares_session:  # behind `base` lie the draft's keys and values, not the target's
            self.session.rewind(base)
        self.statistics.num_proposed += len(tokens)
        return tokens

    def _admissible(self, proposed: list[int]) -> list[int]:
        """The proposed tokens before the first that this level's vocabulary does not have."""
        return list(takewhile(lambda token: 0 <= token < self.decoder.config.vocab_size, proposed))

    def _verify(self, context: Sequence[int], proposed: list[int]) -> Step:
        """Evaluate the context's last token and the proposed ones; the first disagreement ends the round."""
        missing = self.session.align(context)
        with self.statistics.forward():
            logits = self.session.feed(self.decoder, [*missing, *proposed], len(proposed) + 1)
        choices = [int(token) for token in greedy(logits)]
        num_accepted = 0
        while num_accepted < len(proposed) and proposed[num_accepted] == choices[num_accepted]:
            num_accepted += 1
        self.session.rewind(len(context) + num_accepted)
        if self.draft is not None:
            self.draft.statistics.num_accepted += num_accepted
        return Step(choices[: num_accepted + 1], logits[: num_accepted + 1])


def _probability(logits: F32, token: int) -> float:
    """Softmax probability of one token."""
    finite = logits.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(1.0 / np.exp(finite - finite[token]).sum())
