"""The n-gram table of formats/ngram.md: the best next token of every frequent context of one or two tokens.

A table is mapped from its file, and every entry is checked before the first look-up.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U32, U64, Bool
from mxconv.checkpoint.safetensors_header import DTYPES, format_header, shown
from mxconv.checkpoint.tensor import MappedFile
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
        """Raises CheckpointError where the table, called `name`, was counted in tokens of another tokenizer.json."""
        if sha256 != self.tokenizer_sha256:
            raise CheckpointError(
                f"{name}: its tokens are of a tokenizer.json with SHA-256 {self.tokenizer_sha256[:16]}...; that of the "
                f"model, {sha256[:16]}..., is required. Run `mxconv train ngram` with the model as --tokenizer."
            )


FORMAT, VERSION = "mxconv-ngram", "1"
MAX_VOCAB_SIZE = 2**21
CHECKED_ENTRIES = 1 << 20  # at once, so that checking a large table takes little memory

# in the order of writing: the longest elements first keeps all of them aligned
ARRAYS = {
    "trigram.contexts": "U64",
    "bigram.contexts": "U32",
    **{f"{order}.tokens": "U32" for order in ("trigram", "bigram", "unigram")},
    **{f"{order}.probabilities": "F32" for order in ("trigram", "bigram", "unigram")},
}
NUMBERS = {"vocab_size": 1, "num_tokens": 1, "min_count": 1, "num_pruned": 0}  # and the least each may be

_AGAIN = "Run `mxconv train ngram` again."


def write_ngram_table(table: NgramTable, path: Path) -> None:
    """Write a table over whatever is at `path`."""
    token, probability = table.unigram
    contents: dict[str, NDArray[Any]] = {
        "trigram.contexts": table.trigrams.contexts,
        "trigram.tokens": table.trigrams.tokens,
        "trigram.probabilities": table.trigrams.probabilities,
        "bigram.contexts": table.bigrams.contexts,
        "bigram.tokens": table.bigrams.tokens,
        "bigram.probabilities": table.bigrams.probabilities,
        "unigram.tokens": np.array([token], np.uint32),
        "unigram.probabilities": np.array([probability], np.float32),
    }
    metadata = {"format": FORMAT, "version": VERSION, "tokenizer_sha256": table.tokenizer_sha256}
    metadata |= {key: str(getattr(table, key)) for key in NUMBERS}
    header, _ = format_header([(name, dtype, contents[name].shape) for name, dtype in ARRAYS.items()], metadata)
    with path.open("wb") as file:
        file.write(header)
        for name, dtype in ARRAYS.items():
            file.write(np.ascontiguousarray(contents[name], DTYPES[dtype].array_dtype).data)


def read_ngram_table(path: Path) -> NgramTable:
    """Map a table and check all of it.

    Raises:
        CheckpointError: it cannot be read, or is not what formats/ngram.md asks for.
    """
    file = MappedFile(path)
    try:
        numbers = _check_metadata(file.metadata, path)
        arrays = _map_arrays(file)
    finally:
        file.close()  # the arrays keep the map alive
    for order in ("trigram", "bigram", "unigram"):
        _check_entries(order, arrays, numbers["vocab_size"], path)
    trigrams, bigrams = (
        NgramEntries(
            cast(NDArray[np.unsignedinteger], arrays[f"{order}.contexts"]),
            cast(U32, arrays[f"{order}.tokens"]),
            cast(F32, arrays[f"{order}.probabilities"]),
        )
        for order in ("trigram", "bigram")
    )
    unigram = int(cast(U32, arrays["unigram.tokens"])[0]), float(cast(F32, arrays["unigram.probabilities"])[0])
    return NgramTable(file.metadata["tokenizer_sha256"], **numbers, trigrams=trigrams, bigrams=bigrams, unigram=unigram)


def _check_metadata(metadata: Mapping[str, str], path: Path) -> dict[str, int]:
    """The numbers of the metadata."""
    for key, required in {"format": FORMAT, "version": VERSION}.items():
        if metadata.get(key) != required:
            raise CheckpointError(
                f"{path}: {key} is {shown(metadata.get(key))}; {required} is required. "
                "Give a table that this version of `mxconv train ngram` wrote."
            )
    for key in sorted(metadata.keys() ^ {"format", "version", "tokenizer_sha256", *NUMBERS}):
        found = "unknown" if key in metadata else "missing"
        raise CheckpointError(
            f"{path}: metadata {shown(key)} is {found}; formats/ngram.md lists what is required. {_AGAIN}"
        )
    if not re.fullmatch("[0-9a-f]{64}", metadata["tokenizer_sha256"]):
        raise CheckpointError(
            f"{path}: tokenizer_sha256 is {shown(metadata['tokenizer_sha256'])}; 64 hexadecimal digits are required. "
            f"{_AGAIN}"
        )
    for key, least in NUMBERS.items():
        most = MAX_VOCAB_SIZE if key == "vocab_size" else 2**63 - 1
        digits = metadata[key]
        if not re.fullmatch("0|[1-9][0-9]{0,18}", digits) or not least <= int(digits) <= most:
            raise CheckpointError(
                f"{path}: {key} is {shown(digits)}; a number from {least} to {most} is required. {_AGAIN}"
            )
    return {key: int(metadata[key]) for key in NUMBERS}


def _map_arrays(file: MappedFile) -> dict[str, NDArray[np.generic]]:
    for name in sorted(file.entries.keys() ^ ARRAYS.keys()):
        found = "unknown" if name in file.entries else "missing"
        raise CheckpointError(
            f"{file.path}: array {shown(name)} is {found}; {', '.join(ARRAYS)} are required. {_AGAIN}"
        )
    num_entries = {"unigram": 1} | {
        order: file.entries[f"{order}.contexts"].num_bytes * 8 // DTYPES[ARRAYS[f"{order}.contexts"]].num_bits
        for order in ("trigram", "bigram")
    }
    for name, dtype in ARRAYS.items():
        entry = file.entries[name]
        shape = (num_entries[name.partition(".")[0]],)
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise CheckpointError(
                f"{file.path}: array {name} is {entry.dtype} {list(entry.shape)}; {dtype} {list(shape)} is required. "
                f"{_AGAIN}"
            )
    # a file of others may not be aligned; a search would then copy the contexts every time
    return {name: np.require(file.view(name), requirements="A") for name in ARRAYS}


def _check_entries(order: str, arrays: Mapping[str, NDArray[np.generic]], vocab_size: int, path: Path) -> None:
    """Raise unless contexts ascend, tokens are of the vocabulary and probabilities are some."""
    tokens, probabilities = cast(U32, arrays[f"{order}.tokens"]), cast(F32, arrays[f"{order}.probabilities"])
    contexts = cast(U64, arrays.get(f"{order}.contexts", np.zeros(1, np.uint64)))

    def check(name: str, part: NDArray[Any], is_good: Bool, begin: int, required: str) -> None:
        if not is_good.all():
            index = int(np.argmin(is_good))
            raise CheckpointError(
                f"{path}: array {order}.{name}: element {begin + index} is {part[index]}; {required} is required. "
                f"{_AGAIN}"
            )

    for begin in range(0, len(tokens), CHECKED_ENTRIES):
        end = begin + CHECKED_ENTRIES
        part = contexts[begin:end]
        is_known = (part & 0xFFFFFFFF) < vocab_size
        if order == "trigram":
            is_known &= part >> 32 < vocab_size
        check("contexts", part, is_known, begin, f"tokens of a vocabulary of {vocab_size}")
        check("tokens", tokens[begin:end], tokens[begin:end] < vocab_size, begin, f"a token below {vocab_size}")
        chances = probabilities[begin:end]
        check("probabilities", chances, (chances > 0) & (chances <= 1), begin, "a probability above 0 and at most 1")
        ascends = contexts[begin + 1 : end + 1] > contexts[begin:end][: len(contexts[begin + 1 : end + 1])]
        check("contexts", contexts[begin + 1 : end + 1], ascends, begin + 1, "more than the element before")
