"""Training an n-gram table: count the tokens of texts, keep the best next one of each frequent context.

    table = train_ngram([Path("stories.txt")], Path("stories260K-bf16"), min_count=2, max_entries=1_000_000)

The rule of the probabilities is that of formats/ngram.md.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.arrays import F64, I64, U32, U64, Bool
from mxconv.checkpoint.tokenizer_files import read_tokenizer_json
from mxconv.errors import ModelError
from mxconv.package.ngram_table import MAX_VOCAB_SIZE, NgramEntries, NgramTable
from mxconv.progress import Progress, silent
from mxconv.text.texts import read_documents
from mxconv.text.tokenizer import Tokenizer

TOKEN_BITS = np.uint64(21)  # three tokens in 64 bits
TOKEN_MASK = np.uint64((1 << 21) - 1)
HELD_PER_ENTRY = 4  # distinct n-grams counted for each entry that may be kept
MIN_HELD = 1 << 20
BUFFERED = 1 << 21  # n-grams sorted at once


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
        max_entries: the most contexts to keep, at least 1. Memory grows with it, by at most 600 bytes each.
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


class NgramTrainer:
    """Counts of tokens, of pairs and of triples, and the table that follows from them.

    Args:
        vocab_size: of the tokenizer; ids above it raise it.
        max_held: distinct pairs, and distinct triples, to keep while counting.
    """

    def __init__(self, vocab_size: int, max_held: int) -> None:
        self._unigrams: I64 = np.zeros(vocab_size, np.int64)
        self._bigrams, self._trigrams = NgramCounts(max_held), NgramCounts(max_held)
        self._last: U64 = np.zeros(0, np.uint64)  # up to two tokens before the next piece of a document

    @property
    def num_tokens(self) -> int:
        return int(self._unigrams.sum())

    def add(self, token_ids: Sequence[int], begins_document: bool) -> None:
        """Count a piece of a document.

        Raises:
            ModelError: a token id is too large for the format.
        """
        if begins_document:
            self._last = self._last[:0]
        if not token_ids:
            return
        if (vocab_size := max(max(token_ids) + 1, len(self._unigrams))) > MAX_VOCAB_SIZE:
            raise ModelError(
                f"tokenizer: a vocabulary of {vocab_size:,}; at most {MAX_VOCAB_SIZE:,} is required. Use another model."
            )
        if vocab_size > len(self._unigrams):
            self._unigrams = np.pad(self._unigrams, (0, vocab_size - len(self._unigrams)))
        distinct, counts = np.unique(np.array(token_ids, np.int64), return_counts=True)
        self._unigrams[distinct] += counts
        tokens = np.concatenate([self._last, np.array(token_ids, np.uint64)])
        pairs = tokens[:-1] << TOKEN_BITS | tokens[1:]
        # those that begin and end before the piece were counted with the last one
        self._bigrams.add(pairs[max(len(self._last) - 1, 0) :])
        self._trigrams.add(pairs[:-1] << TOKEN_BITS | tokens[2:])
        self._last = tokens[-2:]

    def table(self, tokenizer_sha256: str, min_count: int, max_entries: int) -> NgramTable:
        """The table of what was counted, at least one token."""
        chances = self._unigrams / self.num_tokens
        bigrams = Followers.of(*self._bigrams.sorted())
        trigrams = Followers.of(*self._trigrams.sorted())
        after_one = bigrams.interpolated(chances[bigrams.tokens])
        # P(w | b) of every triple a b w, whose pair b w may have been dropped
        shorter = bigrams.probability(trigrams.contexts & TOKEN_MASK, trigrams.tokens, chances)
        after_two = trigrams.interpolated(shorter)
        best_one, best_two = bigrams.best(after_one), trigrams.best(after_two)
        keep_one, keep_two = _chosen(bigrams.counts[best_one], trigrams.counts[best_two], min_count, max_entries)
        best_one, best_two = best_one[keep_one], best_two[keep_two]
        pairs = trigrams.contexts[best_two]
        most_frequent = int(np.argmax(chances))
        return NgramTable(
            tokenizer_sha256=tokenizer_sha256,
            vocab_size=len(self._unigrams),
            num_tokens=self.num_tokens,
            min_count=min_count,
            num_pruned=self._bigrams.num_pruned + self._trigrams.num_pruned,
            trigrams=_entries(
                (pairs >> TOKEN_BITS) << np.uint64(32) | pairs & TOKEN_MASK, trigrams.tokens, after_two, best_two
            ),
            bigrams=_entries(bigrams.contexts[best_one].astype(np.uint32), bigrams.tokens, after_one, best_one),
            unigram=(most_frequent, float(np.float32(chances[most_frequent]))),
        )


@dataclass(frozen=True)
class Followers:
    """Distinct n-grams of one length, sorted, seen as contexts and what followed them."""

    contexts: U64  # (n,) the n-gram without its last token
    tokens: U32  # (n,) the last token
    counts: I64  # (n,)
    begins: I64  # (contexts,) index of each context's first n-gram

    @classmethod
    def of(cls, ngrams: U64, counts: I64) -> "Followers":
        contexts = ngrams >> TOKEN_BITS
        is_first = np.ones(len(ngrams), np.bool_)
        is_first[1:] = contexts[1:] != contexts[:-1]
        return cls(contexts, (ngrams & TOKEN_MASK).astype(np.uint32), counts, np.flatnonzero(is_first))

    def interpolated(self, shorter: F64) -> F64:
        """Witten and Bell's probability of each n-gram, given that of the one without its first token."""
        numbers = self._distinct()
        index = np.repeat(np.arange(len(numbers)), numbers)
        return (self.counts + numbers[index] * shorter) / (self._totals() + numbers)[index]

    def probability(self, contexts: U64, tokens: U32, chances: F64) -> F64:
        """The probability of any token after any context of one token; `chances` are those without context."""
        shorter = chances[tokens]
        if not len(self.counts):
            return shorter
        ngrams = self.contexts << TOKEN_BITS | self.tokens
        places = np.searchsorted(ngrams, contexts << TOKEN_BITS | tokens).clip(max=len(ngrams) - 1)
        is_seen = ngrams[places] == contexts << TOKEN_BITS | tokens
        counts = np.where(is_seen, self.counts[places], 0)
        known = self.contexts[self.begins]
        index = np.searchsorted(known, contexts).clip(max=len(known) - 1)
        numbers = self._distinct()[index]
        interpolated = (counts + numbers * shorter) / (self._totals()[index] + numbers)
        return np.where(known[index] == contexts, interpolated, shorter)

    def best(self, probabilities: F64) -> I64:
        """The index of each context's most probable n-gram, the lowest where equal."""
        if not len(self.begins):
            return self.begins
        greatest = np.maximum.reduceat(probabilities, self.begins)
        candidates = np.flatnonzero(probabilities == np.repeat(greatest, self._distinct()))
        return candidates[np.searchsorted(candidates, self.begins)]

    def _distinct(self) -> I64:
        """(contexts,) how many different tokens follow."""
        return np.diff(self.begins, append=len(self.counts))

    def _totals(self) -> I64:
        """(contexts,) how often anything follows."""
        return np.add.reduceat(self.counts, self.begins) if len(self.begins) else self.counts


def _chosen(bigrams: I64, trigrams: I64, min_count: int, max_entries: int) -> tuple[Bool, Bool]:
    """Which contexts to keep, given how often the best token followed each: the most frequent ones."""
    counts = np.concatenate([bigrams, trigrams])
    keep = counts >= min_count
    if keep.sum() > max_entries:
        keep[:] = False
        keep[np.argsort(-counts, kind="stable")[:max_entries]] = True
    return keep[: len(bigrams)], keep[len(bigrams) :]


def _entries(contexts: U32 | U64, tokens: U32, probabilities: F64, best: I64) -> NgramEntries:
    return NgramEntries(contexts, tokens[best], probabilities[best].astype(np.float32))


class NgramCounts:
    """How often each n-gram occurs. An n-gram is one integer, its first token highest.

    Args:
        max_held: distinct n-grams to keep. At more, those of the lowest counts are dropped until half are left, so
            that memory is bounded; what comes later for one of them is counted from 0.

    Source:
        Dropping what is rare between batches is lossy counting (Manku and Motwani, VLDB 2002), without its bound.
    """

    def __init__(self, max_held: int) -> None:
        self.max_held = max_held
        self.num_pruned = 0  # distinct n-grams dropped, each time counted
        self._keys: U64 = np.zeros(0, np.uint64)
        self._counts: I64 = np.zeros(0, np.int64)
        self._buffer: list[U64] = []
        self._num_buffered = 0

    def add(self, ngrams: U64) -> None:
        """Count occurrences, (n,)."""
        if not len(ngrams):
            return
        self._buffer.append(ngrams)
        self._num_buffered += len(ngrams)
        if self._num_buffered >= BUFFERED:
            self._merge()

    def sorted(self) -> tuple[U64, I64]:
        """Distinct n-grams, ascending, and their counts."""
        self._merge()
        return self._keys, self._counts

    def _merge(self) -> None:
        if not self._num_buffered:
            return
        keys, counts = np.unique(np.concatenate(self._buffer), return_counts=True)
        self._buffer, self._num_buffered = [], 0
        places = np.searchsorted(self._keys, keys)
        is_known = np.zeros(len(keys), np.bool_)
        inside = places < len(self._keys)
        is_known[inside] = self._keys[places[inside]] == keys[inside]
        self._counts[places[is_known]] += counts[is_known]
        places, keys, counts = places[~is_known], keys[~is_known], counts[~is_known]
        self._keys = np.insert(self._keys, places, keys)
        self._counts = np.insert(self._counts, places, counts)
        if len(self._keys) > self.max_held:
            self._prune()

    def _prune(self) -> None:
        """Drop all n-grams of the lowest counts, as many counts as it takes."""
        num_dropped = len(self._keys) - self.max_held // 2
        threshold = np.partition(self._counts, num_dropped - 1)[num_dropped - 1]
        keep = self._counts > threshold
        self.num_pruned += len(keep) - int(keep.sum())
        self._keys, self._counts = self._keys[keep], self._counts[keep]
