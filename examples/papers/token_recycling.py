"""Token recycling: a draft made of the candidates that the level above last had for the place after each token.

    mxconv generate PACKAGE --draft examples/papers/token_recycling.py:TokenRecyclingKind --prompt TEXT --check

Source:
    Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling"
    (arXiv 2408.08696), sections 3.1 and 3.3. The paper's tree has a fixed shape; here the likeliest nodes are the tree.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from mxconv.arrays import F32, I32
from mxconv.drafts.kind import NUM_CANDIDATES, LookUp, LookUpKind
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelBase, UpTo64
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.proposal import Proposal, likeliest
from mxconv.speculation.statistics import LevelStatistics


class TokenRecycling(LookUp[int]):
    """An adjacency matrix of tokens, refilled with every verification and kept from one prompt to the next.

    Row t holds the best candidates for what follows token t, from the last logits that followed it.

    Args:
        vocab_size: rows of the matrix, and logits a row of the level above.
        num_candidates: columns; each takes 8 bytes a token of the vocabulary.

    Raises:
        ModelError: no vocabulary or no candidates.
    """

    def __init__(
        self, statistics: LevelStatistics, vocab_size: int, num_candidates: int = 8, confidence: float = 0.4
    ) -> None:
        if not 1 <= num_candidates <= vocab_size:
            raise ModelError(
                f"token-recycling: {num_candidates} candidates; 1 to the vocabulary's {vocab_size} are required. "
                "Choose another number."
            )
        super().__init__(statistics, confidence)
        self.candidates: I32 = np.zeros((vocab_size, num_candidates), np.int32)  # best first
        self.probabilities: F32 = np.zeros((vocab_size, num_candidates), np.float32)  # 0: never seen

    def state(self, context: Sequence[int]) -> int:
        return context[-1]

    def continuations(self, state: int) -> Iterator[tuple[int, float, int]]:
        if 0 <= state < len(self.candidates):
            candidates, probabilities = self.candidates[state].tolist(), self.probabilities[state].tolist()
            for token, probability in zip(candidates, probabilities, strict=True):
                yield token, probability, token

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Replace the rows of all tokens verified; where a token occurs twice, the later logits count."""
        tokens = [context[-1], *proposal.tokens]
        latest = {token: row for row, token in enumerate(tokens)}
        rows = logits if len(latest) == len(tokens) else logits[list(latest.values())]
        candidates, probabilities = likeliest(rows, self.candidates.shape[1])
        self.candidates[list(latest)] = candidates
        self.probabilities[list(latest)] = probabilities


class TokenRecyclingRecord(LevelBase):
    """Its parameters, with the number of candidates after each token."""

    num_candidates: UpTo64 | None = None


class TokenRecyclingKind(LookUpKind):
    """`token_recycling.py:TokenRecyclingKind,num_candidates=8`."""

    name = "token-recycling"
    record_type = TokenRecyclingRecord
    parameters = (NUM_CANDIDATES,)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        number = loaded.record.num_candidates or 8
        return TokenRecycling(LevelStatistics(loaded.name), vocab_size, number, confidence).of_text
