"""N-gram tables for the tests, written as `mxconv train ngram` does."""

from pathlib import Path

import numpy as np

from mxconv.package.ngram_table import NgramEntries, NgramTable, write_ngram_table


def write_table(path: Path, tokenizer_sha256: str, vocab_size: int = 96, seed: int = 0) -> Path:
    """After every token another one, at random, with probability 0.9; after none the first."""
    rng = np.random.default_rng(seed)
    none = NgramEntries(np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.float32))
    bigrams = NgramEntries(
        np.arange(vocab_size, dtype=np.uint32),
        rng.permutation(vocab_size).astype(np.uint32),
        np.full(vocab_size, 0.9, np.float32),
    )
    write_ngram_table(NgramTable(tokenizer_sha256, vocab_size, 1000, 2, 0, none, bigrams, (0, 0.1)), path)
    return path
