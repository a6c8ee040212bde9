"""The likeliest token, whatever was drawn before."""

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.speculation.acceptance import Verdict
from mxconv.speculation.draft import Proposal
from mxconv.speculation.guesses import SHARPNESS, Guesses, at_least
from mxconv.speculation.likeliest import likeliest
from mxconv.speculation.path_penalties import PathPenalties, Rows
from mxconv.speculation.rules.walk import walk
from mxconv.text.sampling import greedy


class GreedyAcceptance:
    """The lowest id among the most likely tokens."""

    def __init__(self) -> None:
        self.penalties: PathPenalties | None = None

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        return walk(proposal, lambda node, _: int(greedy(logits[node + 1])))

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        tokens, chances = likeliest(logits[None] * np.float32(sharpness), min(most, len(logits)))
        return at_least(least, tokens[0].tolist(), chances[0].tolist())

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return logits.astype(np.float64)
