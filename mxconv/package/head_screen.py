"""The head screen of a package: two small matrices in a file of their own. Rules: formats/package.md, "Head screen"."""

from typing import cast

from mxconv.arrays import U8, U16
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.errors import PackageError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.package.stored import StoredArray, mxfp4_arrays
from mxconv.package.stored_matrix import StoredMxfp4

SCREEN_FILE = "head_screen.safetensors"
STEM = "head_screen"


def screen_arrays(rank: int, vocab_size: int, hidden_size: int) -> tuple[StoredArray, ...]:
    """The arrays of the file: the projection, then codes and scales of the matrix that gives scores."""
    projection = StoredArray(f"{STEM}.projection", "BF16", (rank, hidden_size))
    return (projection, *mxfp4_arrays(STEM, (vocab_size, rank)))


def screen_bytes(rank: int, vocab_size: int, hidden_size: int) -> int:
    """Bytes that a pass reads of it."""
    return sum(array.num_bytes for array in screen_arrays(rank, vocab_size, hidden_size))


def head_screen_file(projection: U16, codes: U8, scales: U8, vocab_size: int) -> bytes:
    """The bytes of the file.

    Args:
        projection: (rank, hidden_size) BF16 patterns.
        codes: of the scores' matrix, (vocab_size, rank) in MXFP4, as a package has them.
        scales: likewise.
        vocab_size: rows of the output head.
    """
    arrays = screen_arrays(projection.shape[0], vocab_size, projection.shape[1])
    header, _ = format_header([(array.name, array.dtype, array.shape) for array in arrays], {})
    return header + b"".join(values.tobytes() for values in (projection, codes, scales))


def read_head_screen(package: Package, record: LevelRecord, head: tuple[int, int]) -> tuple[U16, StoredMxfp4]:
    """The projection, (rank, hidden_size) BF16 patterns, and the matrix that gives scores, (vocab_size, rank).

    Args:
        package: that has the level.
        record: of a level with a screen.
        head: (vocab_size, hidden_size) of the output head.

    Raises:
        PackageError: an array is missing or of another shape.
    """
    assert record.screen is not None, "of a level with one"
    found = []
    for array in screen_arrays(record.screen.rank, *head):
        tensor = package.arrays.get(array.name)
        if tensor is None or (tensor.dtype, tensor.shape) != (array.dtype, array.shape):
            is_there = "is missing" if tensor is None else f"is {tensor.dtype} {list(tensor.shape)}"
            raise PackageError(
                f"{package.root / SCREEN_FILE}: array {array.name} {is_there}; {array.dtype} {list(array.shape)} is "
                f"required by level {record.name}. Convert again."
            )
        found.append(tensor.array())
    projection, codes, scales = found
    return cast(U16, projection), StoredMxfp4((head[0], record.screen.rank), cast(U8, codes), cast(U8, scales))
