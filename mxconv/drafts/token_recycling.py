"""A draft made of leftovers: the candidates that the level above last had for the place after each token."""

import copy
from collections.abc import Iterator, Sequence

import numpy as np

from mxconv.arrays import F32, I32
from mxconv.drafts.acceptance import Acceptance
from mxconv.drafts.guesses import likeliest
from mxconv.drafts.kind import NUM_CANDIDATES, DraftSpec, LoadedLevel, LookUpKind, Proposer
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.trees import grow_best_first
from mxconv.errors import ModelError
from mxconv.package.level_record import TokenRecyclingRecord


class TokenRecycling:
    """An adjacency matrix of tokens, refilled with every verification and kept from one prompt to the next.

    Row t holds the best candidates for what follows token t, from the last logits that followed it. A proposal is the
    chain of best ones, or a tree of all. The paper's tree has a fixed shape; here the likeliest nodes are its nodes.

    Args:
        statistics: what it did.
        vocab_size: rows of the matrix, and logits a row of the level above.
        num_candidates: columns; each takes 8 bytes a token of the vocabulary.
        confidence: it stops before the first token whose probability was below.

    Raises:
        ModelError: no vocabulary or no candidates.

    Source:
        Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
        Recycling" (arXiv 2408.08696), sections 3.1 and 3.3.
    """

    def __init__(
        self, statistics: LevelStatistics, vocab_size: int, num_candidates: int = 8, confidence: float = 0.4
    ) -> None:
        if not 1 <= num_candidates <= vocab_size:
            raise ModelError(
                f"token-recycling: {num_candidates} candidates; 1 to the vocabulary's {vocab_size} are required. "
                "Choose another number."
            )
        self.statistics = statistics
        self.confidence = confidence
        self.candidates: I32 = np.zeros((vocab_size, num_candidates), np.int32)  # best first
        self.probabilities: F32 = np.zeros((vocab_size, num_candidates), np.float32)  # 0: never seen

    def of_text(self, statistics: LevelStatistics, acceptance: Acceptance) -> "TokenRecycling":
        """The same matrix, for one text among several that fill it."""
        made = copy.copy(self)
        made.statistics = statistics
        return made

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Up to `num_tokens` tokens; none after a token that nothing was seen after."""
        tokens: list[int] = []
        with self.statistics.forward():
            last = context[-1]
            while len(tokens) < num_tokens and 0 <= last < len(self.candidates):
                probability = float(self.probabilities[last, 0])
                if probability == 0.0 or not probability >= self.confidence:  # of logits that are NaN it is NaN
                    break
                last = int(self.candidates[last, 0])
                tokens.append(last)
        return Proposal(tokens)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """The likeliest tree of candidates after the last token."""
        with self.statistics.forward():
            return grow_best_first(context[-1], self._continuations, most_depth, floors)

    def _continuations(self, last: int) -> Iterator[tuple[int, float, int]]:
        if 0 <= last < len(self.candidates):
            for token, probability in zip(
                self.candidates[last].tolist(), self.probabilities[last].tolist(), strict=True
            ):
                yield token, probability, token

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Replace the rows of all tokens seen; where a token occurs twice, the later logits count."""
        tokens = [context[-1], *proposal.tokens]
        latest = {token: row for row, token in enumerate(tokens)}
        rows = logits if len(latest) == len(tokens) else logits[list(latest.values())]
        candidates, probabilities = likeliest(rows, self.candidates.shape[1])
        self.candidates[list(latest)] = candidates
        self.probabilities[list(latest)] = probabilities


class TokenRecyclingKind(LookUpKind):
    """`token-recycling:num_candidates=8`."""

    name = "token-recycling"
    record_type = TokenRecyclingRecord
    parameters = (NUM_CANDIDATES,)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"num_candidates": spec.parameters.get("num_candidates", 8)}

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        number = loaded.record.num_candidates or 8
        return TokenRecycling(LevelStatistics(loaded.name), vocab_size, number, confidence).of_text


TOKEN_RECYCLING = TokenRecyclingKind()
