"""The head screen of a package or a draft file: two small matrices. Rules: formats/package.md, "Head screen"."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from mxconv.arrays import U8, U16
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.screen_axes import num_chosen
from mxconv.errors import PackageError
from mxconv.package.level_record import ScreenRecord
from mxconv.package.manifest import TensorRecord
from mxconv.package.stored import StoredArray, StoredMxfp4, mxfp4_arrays

STEM = "head_screen"
OWN_TILES = 64  # that a head in 4 bits chooses: 16 missed one likeliest token in 300, 32 none (docs/research/log.md)


@dataclass(frozen=True)
class HeadScreen:
    """A screen as it is stored."""

    projection: U16  # (rank, hidden_size) BF16 patterns
    scores: StoredMxfp4  # (vocab_size, rank)
    num_candidates: int

    @property
    def record(self) -> ScreenRecord:
        """For the manifest."""
        return ScreenRecord(rank=len(self.projection), num_candidates=self.num_candidates)

    @property
    def arrays(self) -> list[tuple[StoredArray, U8 | U16]]:
        """What a file holds of it."""
        vocab_size, rank = self.scores.shape
        arrays = screen_arrays(rank, vocab_size, self.projection.shape[1])
        return list(zip(arrays, (self.projection, self.scores.codes, self.scores.scales), strict=True))

    @property
    def file(self) -> bytes:
        """The bytes of a package's file."""
        header, _ = format_header([(array.name, array.dtype, array.shape) for array, _ in self.arrays], {})
        return header + b"".join(values.tobytes() for _, values in self.arrays)


def own_candidates(tensors: Iterable[TensorRecord], heads: Container[str]) -> int:
    """By how many tiles of 16 tokens an output head in 4 bits screens itself, where a level has no screen.

    0 where the vocabulary is small, or the level is to read all bits of the head. formats/package.md, "Head screen".
    """
    for record in tensors:
        is_given = record.carried is not None or record.scaled is not None
        if record.name in heads and record.codec != "keep" and not is_given:
            return num_chosen(OWN_TILES, record.shape[0])
    return 0


def screen_arrays(rank: int, vocab_size: int, hidden_size: int) -> tuple[StoredArray, ...]:
    """The projection, then codes and scales of the matrix that gives scores."""
    projection = StoredArray(f"{STEM}.projection", "BF16", (rank, hidden_size))
    return (projection, *mxfp4_arrays(STEM, (vocab_size, rank)))


def screen_bytes(rank: int, vocab_size: int, hidden_size: int) -> int:
    """Bytes that a pass reads of it."""
    return sum(array.num_bytes for array in screen_arrays(rank, vocab_size, hidden_size))


def read_head_screen(
    arrays: Mapping[str, SourceTensor], record: ScreenRecord, head: tuple[int, int], label: str
) -> HeadScreen:
    """The screen among the arrays of a file.

    Args:
        arrays: by name.
        record: what is said of it.
        head: (vocab_size, hidden_size) of the output head.
        label: names the file in messages.

    Raises:
        PackageError: an array is missing or of another shape.
    """
    found = []
    for array in screen_arrays(record.rank, *head):
        tensor = arrays.get(array.name)
        if tensor is None or (tensor.dtype, tensor.shape) != (array.dtype, array.shape):
            is_there = "is missing" if tensor is None else f"is {tensor.dtype} {list(tensor.shape)}"
            raise PackageError(
                f"{label}: array {array.name} {is_there}; {array.dtype} {list(array.shape)} is required. Convert again."
            )
        found.append(tensor.array())
    projection, codes, scales = found
    scores = StoredMxfp4((head[0], record.rank), cast(U8, codes), cast(U8, scales))
    return HeadScreen(cast(U16, projection), scores, record.num_candidates)
