"""The n-gram table of formats/ngram.md: the best next token of every context of one or two tokens that was frequent."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U32
from mxconv.errors import CheckpointError


@dataclass(frozen=True)
class NgramEntries:
    """The best next tokens of E contexts of one length."""

    contexts: NDArray[np.unsignedinteger]  # (E,) ascending; U32 the last token, U64 plus 2^32 * the one before
    tokens: U32  # (E,)
    probabilities: F32  # (E,)

    def find(self, context: int) -> int | None:
        """The index of a context, if it is here."""
        # as a number of the same type: for any other, NumPy would convert all contexts first
        index = int(np.searchsorted(self.contexts, self.contexts.dtype.type(context)))
        return index if index < len(self.contexts) and self.contexts[index] == context else None


@dataclass(frozen=True)
class NgramTable:
    """A table, in memory or mapped. One that `read_ngram_table` returns has been checked."""

    tokenizer_sha256: str
    vocab_size: int
    num_tokens: int  # counted
    min_count: int
    num_pruned: int
    trigrams: NgramEntries  # of two tokens of context
    bigrams: NgramEntries  # of one
    unigram: tuple[int, float]  # of none: token, probability

    def best(self, context: Sequence[int]) -> tuple[int, float]:
        """The most probable token after a context and its probability; the last two tokens decide."""
        last = context[-2:]
        if all(0 <= token < self.vocab_size for token in last):
            if len(last) == 2 and (found := self.trigrams.find(last[0] << 32 | last[1])) is not None:
                return int(self.trigrams.tokens[found]), float(self.trigrams.probabilities[found])
            if last and (found := self.bigrams.find(last[-1])) is not None:
                return int(self.bigrams.tokens[found]), float(self.bigrams.probabilities[found])
        return self.unigram

    def check_tokenizer(self, sha256: str, name: str) -> None:
        """Check that the table was counted in the tokens of a model.

        Args:
            sha256: of the model's tokenizer.json, in hex.
            name: what the message calls the table.

        Raises:
            CheckpointError: it was counted in those of another tokenizer.json.
        """
        if sha256 != self.tokenizer_sha256:
            raise CheckpointError(
                f"{name}: its tokens are of a tokenizer.json with SHA-256 {self.tokenizer_sha256[:16]}...; that of the "
                f"model, {sha256[:16]}..., is required. Run `mxconv train ngram` with the model as --tokenizer."
            )
