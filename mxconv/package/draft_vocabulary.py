"""The draft vocabulary of a package: the tokens that its drafts choose from, in a file of one array.

The rules are those of formats/package.md, "Draft vocabulary".
"""

import numpy as np

from mxconv.arrays import I32, I64
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.errors import PackageError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package

VOCABULARY_FILE = "draft_vocabulary.safetensors"
ARRAY = "draft_vocabulary"


def draft_vocabulary_file(tokens: I32) -> bytes:
    """The bytes of the file; `tokens` are (num_tokens,) ascending ids."""
    header, _ = format_header([(ARRAY, "I32", tokens.shape)], {})
    return header + tokens.astype("<i4").tobytes()


def read_draft_vocabulary(package: Package, record: LevelRecord, vocab_size: int) -> I64:
    """(num_tokens,) int64: the ascending ids that a level with a vocabulary chooses from, of `vocab_size`.

    Raises:
        PackageError: the array is missing or of another shape, or its ids do not ascend or are none of the model's.
    """
    assert record.vocabulary is not None, "of a level with one"
    found, required = package.arrays.get(ARRAY), [record.vocabulary.num_tokens]
    name = f"{package.root / VOCABULARY_FILE}: array {ARRAY}"
    if found is None or (found.dtype, list(found.shape)) != ("I32", required):
        is_there = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
        raise PackageError(f"{name} {is_there}; I32 {required} is required by level {record.name}. Convert again.")
    tokens = found.array().astype(np.int64)
    (falls,) = np.nonzero(np.diff(tokens) <= 0)
    if len(falls):
        raise PackageError(
            f"{name}: token {tokens[falls[0] + 1]} after {tokens[falls[0]]}; ids that ascend, each once, are "
            "required. The file is damaged; convert again."
        )
    if tokens[0] < 0 or tokens[-1] >= vocab_size:
        raise PackageError(
            f"{name}: token {tokens[0] if tokens[0] < 0 else tokens[-1]}; ids from 0 to {vocab_size - 1} are "
            "required. The file is damaged; convert again."
        )
    return tokens
