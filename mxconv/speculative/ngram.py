"""A draft that is a table: the most frequent next token of what `mxconv train ngram` counted."""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.checkpoint.ngram_table import NgramTable
from mxconv.speculative.draft import Proposal
from mxconv.speculative.statistics import LevelStatistics


class NgramDraft:
    """A chain of best next tokens, each looked up behind the one before.

    Args:
        statistics: what it did.
        table: of the tokenizer that the level above uses.
        confidence: it stops before the first token whose probability is below.
    """

    def __init__(self, statistics: LevelStatistics, table: NgramTable, confidence: float) -> None:
        self.statistics = statistics
        self.table = table
        self.confidence = confidence

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Up to `num_tokens` tokens."""
        tokens: list[int] = []
        with self.statistics.forward():
            last = list(context[-2:])
            while len(tokens) < num_tokens:
                token, probability = self.table.best(last)
                if probability < self.confidence:
                    break
                tokens.append(token)
                last = [*last[-1:], token]
        return Proposal(tokens)

    def observe(self, tokens: Sequence[int], logits: F32) -> None:
        """The table is fixed."""
