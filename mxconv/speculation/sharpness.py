"""How far a model's guesses may be believed: its agreement with the level above, learned from what was verified."""

from collections.abc import Sequence
from math import exp
from typing import Protocol, runtime_checkable

from mxconv.speculation.draft import Proposal
from mxconv.speculation.guesses import SHARPNESS

LEAST, MOST = 1.0, 6.0
GAIN = 0.02  # of the logarithm, for a token that stood though its chance was 0


class Sharpness:
    """How many times as large a draft's logits are to be taken, so that its likeliest tokens stand as often as it says.

    A distilled draft is right more often than its softmax says, since the level above takes the likeliest token where
    the softmax says how a text could go on. Without that, a tree would stop short of depths that pay.
    """

    def __init__(self) -> None:
        self.value = SHARPNESS

    def learn(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Follow what was chosen through a tree, and judge the likeliest token of every place that it came by.

        Args:
            proposal: the draft's tree. Of one that was drawn at random nothing is learned.
            tokens: that the level above chose: of the path that stood, and one more.
        """
        if proposal.parents is None or proposal.distributions:
            return
        surprise, node = 0.0, -1
        for token in tokens:
            children = proposal.children(node)
            if not children:
                break
            surprise += (proposal.tokens[children[0]] == token) - proposal.probabilities[children[0]]
            node = next((child for child in children if proposal.tokens[child] == token), -1)
            if node < 0:
                break
        self.value = min(max(self.value * exp(GAIN * surprise), LEAST), MOST)


@runtime_checkable
class Sharpened(Protocol):
    """A draft whose trees' chances depend on a sharpness."""

    @property
    def sharpness(self) -> Sharpness: ...
