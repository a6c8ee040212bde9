"""Reading a package: the manifest, and every stored array as a view of its memory-mapped file."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I8, I64, U8, U16
from mxconv.checkpoint.manifest import FILE_NAME, Manifest, TensorRecord, read_manifest
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.checkpoint.regular_file import check_regular_file
from mxconv.checkpoint.stored import StoredArray, bsfp_arrays, mxfp4_arrays
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp
from mxconv.codecs.bsfp.rescale import undo_rescale
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import FORMATS, float_format
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import CheckpointError, CodecError, PackageError

DecodeBsfp = Callable[[PackedBsfp, SegmentTable, tuple[int, int]], U16]


@dataclass(frozen=True)
class StoredMxfp4:
    """An MXFP4 matrix as stored, see formats/mxfp4.md."""

    shape: tuple[int, int]
    codes: U8  # (row tiles, column tiles, 64)
    scales: U8  # (row tiles, blocks, 16)


@dataclass(frozen=True)
class StoredBsfp:
    """A BSFP matrix as stored, see formats/bsfp.md."""

    shape: tuple[int, int]
    table: SegmentTable
    packed: PackedBsfp
    escape_offsets: I64  # (row tiles + 1,) index of each row tile's first escape
    rescale_factor: float

    def row_tiles(self, start: int, stop: int) -> PackedBsfp:
        """The rows of tiles [start, stop), still packed."""
        p, offsets = self.packed, self.escape_offsets
        escapes = slice(int(offsets[start]), int(offsets[stop]))
        return replace(
            p,
            codes=p.codes[start:stop],
            residual_low=p.residual_low[start:stop],
            residual_high=p.residual_high[start:stop],
            scales=p.scales[start:stop],
            row_shifts=None if p.row_shifts is None else p.row_shifts[start * TILE_ROWS : stop * TILE_ROWS],
            escape_counts=p.escape_counts[start:stop],
            escape_positions=p.escape_positions[escapes],
            escape_high=p.escape_high[escapes],
        )

    def target_rows(self, start: int, stop: int, decode: DecodeBsfp = decode_bsfp) -> U16:
        """The 16-bit patterns of rows [start, stop): exact, unless the tensor was rescaled.

        Args:
            start: a multiple of 16.
            stop: a multiple of 16, or the last row's end.
            decode: the reference, or something faster that gives the same bits.
        """
        tiles = self.row_tiles(start // TILE_ROWS, -(-stop // TILE_ROWS))
        patterns = decode(tiles, self.table, (stop - start, self.shape[1]))
        with np.errstate(over="ignore"):  # of a forged factor; the tensor's hash tells
            return undo_rescale(patterns, self.rescale_factor, self.table.float_format)


def inside(root: Path, name: str) -> Path:
    """The path of a file of a package.

    Raises:
        PackageError: symbolic links lead out of the folder; in the Hub cache, out of the folders of its blobs.
    """
    path = root / name
    # realpath, unlike Path.resolve, says nothing about loops and long names; opening the file does
    if not any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in _homes(Path(os.path.realpath(root)))):
        raise PackageError(f"{path}: leads out of the package; files inside it are required. Convert again.")
    return path


def _homes(root: Path) -> list[Path]:
    """The folders in which a package's files may lie: its own, and what a snapshot in the Hub cache links to.

    models--OWNER--NAME/snapshots/COMMIT/FILE leads to models--OWNER--NAME/blobs, or from there to a store that all
    repositories share, blobs beside them.
    """
    for snapshot in (root, *root.parents):  # a draft's package is a folder in its target's
        repository = snapshot.parent.parent
        if snapshot.parent.name == "snapshots" and repository.name.startswith("models--"):
            return [root, repository / "blobs", repository.parent / "blobs"]
    return [root]


class Package:
    """An open package. A context manager; closing it unmaps the files."""

    def __init__(self, path: Path) -> None:
        """Read the manifest, map the files, and check that every stored array is there as its record says.

        Raises:
            PackageError: the manifest is refused, a file is missing or has another length, or an array is not what
                the manifest says. Contents are not hashed here; `mxconv verify` does that.
        """
        self.root = path
        self.manifest: Manifest = read_manifest(path)
        self._files: list[MappedFile] = []
        try:
            self._check_files()
            self.arrays: Mapping[str, SourceTensor] = self._map_arrays()
            for record in self.manifest.tensors:
                self._check_arrays(record)
        except CheckpointError as error:
            self.close()
            raise PackageError(f"{error} It is part of the package {path}.") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the files. Views that are still in use stay valid."""
        for file in self._files:
            file.close()

    def __enter__(self) -> "Package":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def has_target(self) -> bool:
        """Whether the target's weights are in the package, not referenced."""
        return self.manifest.levels[0].location == "package"

    def mxfp4(self, record: TensorRecord) -> StoredMxfp4:
        """A matrix of the MXFP4 level."""
        codes, scales = (self._array(a.name) for a in mxfp4_arrays(record.name, _matrix_shape(record)))
        return StoredMxfp4(_matrix_shape(record), cast(U8, codes), cast(U8, scales))

    def bsfp(self, record: TensorRecord) -> StoredBsfp:
        """A matrix of a BSFP package: target and draft.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        assert record.segments is not None
        table = record.segments.table(record.dtype)
        part = {a.name.rpartition(".")[2]: self._array(a.name) for a in _bsfp_arrays(record, table)}
        low = cast(U8, part["residual_low"])
        no_high = np.zeros((*low.shape[:2], 0, TILE_ROWS), np.uint8)
        packed = PackedBsfp(
            codes=cast(U8, part["codes"]),
            residual_low=low,
            residual_high=cast(U8, part.get("residual_high", no_high)),
            scales=cast(U16, part["scales"]),
            row_shifts=cast(I8, part["row_shifts"]) if "row_shifts" in part else None,
            escape_counts=cast(U8, part["escape_counts"]),
            escape_positions=cast(U8, part["escape_positions"]),
            escape_high=cast(U8, part["escape_high"]),
        )
        offsets = cast(I64, part["escape_offsets"])
        in_tiles = packed.escape_counts.sum(axis=1, dtype=np.int64)
        if offsets[0] != 0 or not np.array_equal(np.diff(offsets), in_tiles) or offsets[-1] != len(packed.escape_high):
            raise PackageError(
                f"{self.root}: tensor {record.name}: escape offsets end at {int(offsets[-1])} and counts sum to "
                f"{int(in_tiles.sum())}, of {len(packed.escape_high)} escapes; they must agree. "
                "The file is damaged; convert again."
            )
        return StoredBsfp(_matrix_shape(record), table, packed, offsets, record.segments.rescale_factor)

    def kept(self, record: TensorRecord) -> SourceTensor:
        """A tensor that is stored as it was, in the target or among the BSFP planes."""
        return self.arrays[record.name]

    def release(self, record: TensorRecord, start: int, stop: int) -> None:
        """Drop rows [start, stop) of a tensor from resident memory: its tiles, or itself where it is kept."""
        tiles = start // TILE_ROWS, -(-stop // TILE_ROWS)
        for part in ("codes", "scales", "residual_low", "residual_high"):
            if (array := self.arrays.get(f"{record.name}.{part}")) is not None:
                array.release(*tiles)
        if record.name in self.arrays:
            self.arrays[record.name].release(start, stop)

    def _array(self, name: str) -> NDArray[np.generic]:
        return self.arrays[name].array()

    def _check_files(self) -> None:
        for record in self.manifest.files:
            path = inside(self.root, record.path)
            num_bytes = check_regular_file(path)
            if num_bytes != record.num_bytes:
                raise PackageError(
                    f"{path}: {num_bytes:,} bytes; the manifest says {record.num_bytes:,}. "
                    "The file is damaged or was replaced; convert again."
                )

    def _map_arrays(self) -> dict[str, SourceTensor]:
        listed = {record.path for record in self.manifest.files}
        arrays: dict[str, SourceTensor] = {}
        names = {
            name
            for level in self.manifest.levels
            if level.kind != "model" and level.location == "package"
            for name in level.files
        }
        for name in sorted(names):
            if name not in listed:
                raise PackageError(
                    f"{self.root / FILE_NAME}: a level uses {name!r}, which `files` does not list; "
                    "each file needs its hash. Convert again."
                )
            file = MappedFile(self.root / name)
            self._files.append(file)
            for entry in file.entries:
                if entry in arrays:
                    raise PackageError(
                        f"{self.root / name}: array {entry!r} is also in {arrays[entry].path.name}; once is required. "
                        "Convert again."
                    )
                arrays[entry] = SourceTensor(entry, file)
        return arrays

    def _check_arrays(self, record: TensorRecord) -> None:
        """The arrays that stand for one tensor must be there, with the dtype and shape that its record implies."""
        expected: list[StoredArray] = []
        if record.codec != "keep" and record.dtype not in FORMATS:
            raise PackageError(
                f"{self.root}: tensor {record.name}: {record.codec} of {record.dtype}; BF16 or F16 is required. "
                "Convert again."
            )
        if record.codec == "mxfp4":
            expected += mxfp4_arrays(record.name, _matrix_shape(record))
        if record.codec == "bsfp":
            if record.segments is None:
                raise PackageError(f"{self.root}: tensor {record.name}: codec bsfp without segments. Convert again.")
            try:
                table = record.segments.table(record.dtype)
                expected += _bsfp_arrays(record, table)
                if table.has_row_shifts:
                    shifts = self.arrays.get(f"{record.name}.row_shifts")
                    if shifts is not None and shifts.dtype == "I8":
                        table.row_starts(shifts.num_elements, cast(I8, shifts.array()))
            except CodecError as error:
                raise PackageError(f"{self.root}: tensor {record.name}: {error}") from error
        elif self.has_target:
            expected.append(StoredArray(record.name, record.dtype, tuple(record.shape)))
        for array in expected:
            found = self.arrays.get(array.name)
            if found is None:
                raise PackageError(
                    f"{self.root}: array {array.name} is missing; {array.dtype} {list(array.shape)} is required. "
                    "Convert again."
                )
            if (found.dtype, found.shape) != (array.dtype, array.shape):
                raise PackageError(
                    f"{found.path}: array {array.name} is {found.dtype} {list(found.shape)}; "
                    f"{array.dtype} {list(array.shape)} is required. The file is damaged; convert again."
                )


def _matrix_shape(record: TensorRecord) -> tuple[int, int]:
    if len(record.shape) != 2 or 0 in record.shape:
        raise PackageError(
            f"tensor {record.name}: {record.codec} {record.shape}; a non-empty matrix is required. Convert again."
        )
    return record.shape[0], record.shape[1]


def _bsfp_arrays(record: TensorRecord, table: SegmentTable) -> tuple[StoredArray, ...]:
    assert record.segments is not None
    float_format(record.dtype)
    return bsfp_arrays(
        record.name,
        _matrix_shape(record),
        table.residual_bits,
        table.has_row_shifts,
        record.segments.num_escapes,
    )
