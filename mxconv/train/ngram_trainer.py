"""Training an n-gram table: count the tokens of texts, keep the best next one of each frequent context.

    table = train_ngram([Path("stories.txt")], Path("stories260K-bf16"), min_count=2, max_entries=1_000_000)

The rule of the probabilities is that of formats/ngram.md.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mxconv.checkpoint.tokenizer_files import read_tokenizer_json
from mxconv.errors import ModelError
from mxconv.package.ngram_table import MAX_VOCAB_SIZE, NgramEntries, NgramTable
from mxconv.progress import Progress, silent
from mxconv.text.texts import read_documents
from mxconv.text.tokenizer import Tokenizer

TOKEN_BITS = 21  # of an n-gram, which is one integer, its first token highest
TOKEN_MASK = (1 << TOKEN_BITS) - 1
HELD_PER_ENTRY = 4  # distinct n-grams counted for each entry that may be kept
MIN_HELD = 1 << 20


def train_ngram(
    texts: Sequence[Path],
    tokenizer_folder: Path,
    min_count: int = 2,
    max_entries: int = 1_000_000,
    progress: Progress = silent,
) -> NgramTable:
    """Count texts in bounded memory and make the table.

    Args:
        texts: files of plain text, or .jsonl with `text` or `prompt` keys.
        tokenizer_folder: a model's folder or a package: anything with the tokenizer.json of the target.
        min_count: the least count of a context's best next token, at least 1.
        max_entries: the most contexts to keep, at least 1. Memory grows with it, by about a kilobyte each.
        progress: told the bytes read.

    Raises:
        MxconvError: a text or the tokenizer cannot be read, the vocabulary is too large, or there are no tokens.
    """
    if min_count < 1 or max_entries < 1:
        raise ModelError(f"min_count {min_count}, max_entries {max_entries}; each must be at least 1. Choose others.")
    tokenizer = Tokenizer.from_folder(tokenizer_folder)
    trainer = NgramTrainer(tokenizer.vocab_size, max(HELD_PER_ENTRY * max_entries, MIN_HELD))
    for piece in read_documents(texts, "count", progress):
        # no special tokens: in the middle of a document they would be counted where no text has them
        trainer.add(tokenizer.encode(piece.text, add_special_tokens=False), piece.begins_document)
    if trainer.num_tokens == 0:
        raise ModelError(
            f"{', '.join(map(str, texts))}: 0 tokens; at least one is required. Give texts that hold some."
        )
    tokenizer_sha256 = hashlib.sha256(read_tokenizer_json(tokenizer_folder) or b"").hexdigest()
    return trainer.table(tokenizer_sha256, min_count, max_entries)


class Best(NamedTuple):
    """The most probable token after a context, and how often it followed."""

    context: int
    token: int
    probability: float
    frequency: int


class NgramTrainer:
    """Counts of tokens, of pairs and of triples, and the table that follows from them.

    Args:
        vocab_size: of the tokenizer; ids above it raise it.
        max_held: distinct pairs, and distinct triples, to keep while counting.
    """

    def __init__(self, vocab_size: int, max_held: int) -> None:
        self._vocab_size = vocab_size
        self._tokens = Counter[int]()
        self._pairs, self._triples = NgramCounts(max_held), NgramCounts(max_held)
        self._last: list[int] = []  # up to two tokens before the next piece of a document

    @property
    def num_tokens(self) -> int:
        return self._tokens.total()

    def add(self, token_ids: Sequence[int], begins_document: bool) -> None:
        """Count a piece of a document.

        Raises:
            ModelError: a token id is too large for the format.
        """
        self._vocab_size = max(self._vocab_size, max(token_ids, default=0) + 1)
        if self._vocab_size > MAX_VOCAB_SIZE:
            raise ModelError(
                f"tokenizer: a vocabulary of {self._vocab_size:,}; at most {MAX_VOCAB_SIZE:,} is required. Use another "
                "model."
            )
        if begins_document:
            self._last = []
        tokens = [*self._last, *token_ids]
        pairs = [first << TOKEN_BITS | second for first, second in pairwise(tokens)]
        self._tokens.update(token_ids)
        self._pairs.add(pairs[max(len(self._last) - 1, 0) :])  # those before were counted with the last piece
        self._triples.add(pair << TOKEN_BITS | third for pair, third in zip(pairs, tokens[2:], strict=False))
        self._last = tokens[-2:]

    def table(self, tokenizer_sha256: str, min_count: int, max_entries: int) -> NgramTable:
        """The table of what was counted, at least one token."""
        total, pairs = self.num_tokens, self._pairs

        def after_one(context: int, token: int) -> float:
            return pairs.probability(context & TOKEN_MASK, token, self._tokens[token] / total)

        found = [(2, best) for best in pairs.best(lambda _, token: self._tokens[token] / total)]
        found += [(3, best) for best in self._triples.best(after_one)]
        frequent = sorted(
            (each for each in found if each[1].frequency >= min_count), key=lambda each: -each[1].frequency
        )
        kept = sorted(frequent[:max_entries])
        most_frequent = min(self._tokens, key=lambda token: (-self._tokens[token], token))
        return NgramTable(
            tokenizer_sha256=tokenizer_sha256,
            vocab_size=self._vocab_size,
            num_tokens=total,
            min_count=min_count,
            num_pruned=pairs.num_pruned + self._triples.num_pruned,
            trigrams=_entries([best for order, best in kept if order == 3], np.uint64),
            bigrams=_entries([best for order, best in kept if order == 2], np.uint32),
            unigram=(most_frequent, float(np.float32(self._tokens[most_frequent] / total))),
        )


def _entries(kept: Sequence[Best], dtype: type[np.uint32 | np.uint64]) -> NgramEntries:
    """Contexts as the format has them, 32 bits a token."""
    contexts = [(best.context >> TOKEN_BITS) << 32 | best.context & TOKEN_MASK for best in kept]
    tokens, probabilities = [best.token for best in kept], [best.probability for best in kept]
    return NgramEntries(np.array(contexts, dtype), np.array(tokens, np.uint32), np.array(probabilities, np.float32))


class NgramCounts:
    """How often each n-gram occurs, and what that says of its last token.

    Args:
        max_held: distinct n-grams to keep. At more, those of the lowest counts are dropped until half are left, so
            that memory is bounded; what comes later for one of them is counted from 0.

    Source:
        Dropping what is rare between batches is lossy counting (Manku and Motwani, VLDB 2002), without its bound.
    """

    def __init__(self, max_held: int) -> None:
        self.num_pruned = 0  # distinct n-grams dropped, each time counted
        self._max_held = max_held
        self._counts = Counter[int]()
        self._totals, self._distinct = Counter[int](), Counter[int]()  # by context, once `best` has seen all counts

    def add(self, ngrams: Iterable[int]) -> None:
        """Count occurrences."""
        self._counts.update(ngrams)
        if len(self._counts) > self._max_held:
            threshold = sorted(self._counts.values())[len(self._counts) - self._max_held // 2 - 1]
            kept = {ngram: count for ngram, count in self._counts.items() if count > threshold}
            self.num_pruned += len(self._counts) - len(kept)
            self._counts = Counter(kept)

    def best(self, shorter: Callable[[int, int], float]) -> list[Best]:
        """The most probable token after each context, the lowest where equal, in the order of contexts.

        Args:
            shorter: the probability of a token after a context without its first token.
        """
        self._totals, self._distinct = Counter(), Counter(ngram >> TOKEN_BITS for ngram in self._counts)
        for ngram, count in self._counts.items():
            self._totals[ngram >> TOKEN_BITS] += count
        found: dict[int, Best] = {}
        for ngram, count in sorted(self._counts.items()):
            context, token = ngram >> TOKEN_BITS, ngram & TOKEN_MASK
            chance = self.probability(context, token, shorter(context, token))
            if context not in found or chance > found[context].probability:
                found[context] = Best(context, token, chance, count)
        return list(found.values())

    def probability(self, context: int, token: int, shorter: float) -> float:
        """Witten and Bell's probability of a token after a context, once `best` has seen all counts."""
        if not (distinct := self._distinct[context]):
            return shorter
        count = self._counts[context << TOKEN_BITS | token]
        return (count + distinct * shorter) / (self._totals[context] + distinct)
