"""The likeliest token, whatever was drawn before."""

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.model.sampling import greedy
from mxconv.speculative.acceptance import Verdict
from mxconv.speculative.draft import Proposal
from mxconv.speculative.guesses import SHARPNESS, Guesses, at_least
from mxconv.speculative.likeliest import likeliest
from mxconv.speculative.path_penalties import PathPenalties, Rows
from mxconv.speculative.rules.walk import walk


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
