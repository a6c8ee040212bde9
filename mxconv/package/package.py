"""Reading a package: the manifest, and every stored array as a view of its memory-mapped file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I8, I64, U8, U16
from mxconv.checkpoint.regular_file import check_regular_file
from mxconv.checkpoint.tensor import MappedFile, SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.codecs.mxint8 import check_mxint8
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.errors import CheckpointError, CodecError, PackageError
from mxconv.package.manifest import FILE_NAME, Manifest, TensorRecord, read_manifest
from mxconv.package.stored import (
    StoredArray,
    StoredBsfp,
    StoredDraft,
    StoredMxfp4,
    StoredMxint8,
    mxfp4_arrays,
    mxint8_arrays,
    place_of,
    stored_shape,
    tensor_arrays,
)

if TYPE_CHECKING:
    from mxconv.checkpoint.fp8_matrix import Fp8Matrix
    from mxconv.checkpoint.source import Checkpoint


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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process, it is opened there."""
        return Package, (self.root.absolute(),)

    @property
    def has_target(self) -> bool:
        """Whether the target's weights are in the package, not referenced."""
        return self.manifest.levels[0].location == "package"

    def draft(self, record: TensorRecord, expert: int | None = None) -> StoredDraft:
        """The matrix of a draft in whichever format a tensor has one, or that of one expert of a stack.

        Raises:
            PackageError: its bytes are none of the format.
        """
        if record.codec == "mxint8":
            return self.mxint8(record)
        return self.mxfp4(record, expert) if record.codec == "mxfp4" else self.bsfp(record, expert)

    def mxfp4(self, record: TensorRecord, expert: int | None = None) -> StoredMxfp4:
        """A matrix of the MXFP4 level, or that of one expert of a stack: nothing else of it is read."""
        shape, tiles = place_of(record, expert)
        codes, scales = (self._array(a.name)[tiles] for a in mxfp4_arrays(record.stem, stored_shape(record)))
        return StoredMxfp4(shape, cast(U8, codes), cast(U8, scales))

    def mxint8(self, record: TensorRecord) -> StoredMxint8:
        """An MXINT8 matrix; its bytes are read through once.

        Raises:
            PackageError: an element or a scale is none of the format.
        """
        elements, scales = (self._array(a.name) for a in mxint8_arrays(record.name, stored_shape(record)))
        stored = StoredMxint8(stored_shape(record), cast(I8, elements), cast(U8, scales))
        try:
            check_mxint8(stored.elements, stored.scales)
        except CodecError as error:
            raise PackageError(
                f"{self.root}: tensor {record.name}: {error} The file is damaged; convert again."
            ) from error
        return stored

    def bsfp(self, record: TensorRecord, expert: int | None = None) -> StoredBsfp:
        """A matrix of a BSFP package, or that of one expert of a stack, of which alone is read: target and draft.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        shape, tiles = place_of(record, expert)
        segments = record.all_segments[expert or 0] if len(record.all_segments) > 1 else record.all_segments[0]
        table = segments.table(record.dtype)
        part = {a.name.rpartition(".")[2]: self._array(a.name) for a in tensor_arrays(record)}
        low = cast(U8, part["residual_low"])[tiles]
        no_high = np.zeros((*low.shape[:2], 0, TILE_ROWS), np.uint8)
        rows = slice(tiles.start * TILE_ROWS, tiles.stop * TILE_ROWS)
        offsets = cast(I64, part["escape_offsets"])[tiles.start : tiles.stop + 1]
        counts = cast(U8, part["escape_counts"])[tiles]
        escapes = self._escapes(record, tiles, offsets, counts, len(part["escape_high"]))
        from mxconv.codecs.bsfp.packing import PackedBsfp

        packed = PackedBsfp(
            codes=cast(U8, part["codes"])[tiles],
            residual_low=low,
            residual_high=cast(U8, part["residual_high"])[tiles] if "residual_high" in part else no_high,
            scales=cast(U16, part["scales"])[tiles],
            row_shifts=cast(I8, part["row_shifts"])[rows] if "row_shifts" in part else None,
            escape_counts=counts,
            escape_positions=cast(U8, part["escape_positions"])[escapes],
            escape_high=cast(U8, part["escape_high"])[escapes],
        )
        return StoredBsfp(shape, table, packed, offsets - escapes.start, segments.rescale_factor)

    def _escapes(self, record: TensorRecord, tiles: slice, offsets: I64, counts: U8, num_escapes: int) -> slice:
        """Which of the escapes are of these row tiles.

        Raises:
            PackageError: offsets, counts and lists contradict each other.
        """
        first, last = int(offsets[0]), int(offsets[-1])
        in_tiles = counts.sum(axis=1, dtype=np.int64)
        has_begun = tiles.start > 0 or first == 0
        has_ended = tiles.stop < stored_shape(record)[0] // TILE_ROWS or last == num_escapes
        agrees = np.array_equal(np.diff(offsets), in_tiles) and 0 <= first <= last <= num_escapes
        if not (agrees and has_begun and has_ended):
            raise PackageError(
                f"{self.root}: tensor {record.name}: escape offsets end at {last} and counts sum to "
                f"{int(in_tiles.sum())}, of {num_escapes} escapes; they must agree. "
                "The file is damaged; convert again."
            )
        return slice(first, last)

    def keeps(self, record: TensorRecord) -> bool:
        """Whether the tensor's own bytes lie in the package as they are, and not codes that give them back."""
        is_target_and_draft = record.carried is not None and self.manifest.options.codec == "bsfp"
        return self.has_target and record.codec != "bsfp" and not is_target_and_draft

    def kept(self, record: TensorRecord) -> SourceTensor:
        """A tensor that is stored as it was, in the target or among the BSFP planes."""
        return self.arrays[record.name]

    def fp8(self, record: TensorRecord, tensors: Mapping[str, SourceTensor] | None = None) -> "Fp8Matrix":
        """An FP8 matrix, decoded as it is read; `tensors` are the target's, where they are not in the package.

        Raises:
            PackageError: its scales are missing, or do not belong to it.
        """
        scaled, found = record.scaled, self.arrays if tensors is None else tensors
        assert scaled is not None
        missing = [name for name in (record.name, scaled.by) if name not in found]
        if missing:
            raise PackageError(
                f"{self.root}: tensor {missing[0]} is missing; FP8 weights and scales are required. Convert again."
            )
        try:
            from mxconv.checkpoint.fp8_matrix import Fp8Matrix

            return Fp8Matrix(found[record.name], found[scaled.by], (scaled.block[0], scaled.block[1]))
        except CheckpointError as error:
            raise PackageError(f"{error} It is part of the package {self.root}.") from error

    def release(self, record: TensorRecord, start: int, stop: int) -> None:
        """Drop rows [start, stop) of a tensor from resident memory: its tiles, or itself where it is kept."""
        self._release(record, (start // TILE_ROWS, -(-stop // TILE_ROWS)), (start, stop))

    def release_expert(self, record: TensorRecord, expert: int) -> None:
        """Drop one expert of a stack from resident memory."""
        assert record.stack is not None
        self._release(record, record.stack.tiles(expert), (expert, expert + 1))

    def _release(self, record: TensorRecord, tiles: tuple[int, int], rows: tuple[int, int]) -> None:
        for part in ("codes", "elements", "scales", "residual_low", "residual_high"):
            if (array := self.arrays.get(f"{record.stem}.{part}")) is not None:
                array.release(*tiles)
        if record.name in self.arrays:
            self.arrays[record.name].release(*rows)

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
            file.fetch()
            for entry in file.entries:
                if entry in arrays:
                    other = Path(arrays[entry].path).name
                    raise PackageError(
                        f"{self.root / name}: array {entry!r} is also in {other}; once is required. Convert again."
                    )
                arrays[entry] = SourceTensor(entry, file)
        return arrays

    def _check_arrays(self, record: TensorRecord) -> None:
        """The arrays that stand for one tensor must be there, with the dtype and shape that its record implies."""
        if record.scaled is not None and self.has_target:
            self.fp8(record)
        is_bsfp, is_carried = record.codec == "bsfp", record.carried is not None
        has_weights = record.dtype in FORMATS or is_carried or (record.scaled is not None and not is_bsfp)
        if record.is_quantized and not has_weights:
            raise PackageError(
                f"{self.root}: tensor {record.name}: {record.codec} of {record.dtype}; BF16 or F16 is required. "
                "Convert again."
            )
        if is_bsfp and not record.all_segments:
            raise PackageError(f"{self.root}: tensor {record.name}: codec bsfp without segments. Convert again.")
        expected: list[StoredArray] = []
        try:
            # a record of one of the source's own MXFP4 tensors leads to both arrays
            expected += mxfp4_arrays(record.stem, stored_shape(record)) if is_carried else tensor_arrays(record)
            if is_bsfp:
                self._check_row_shifts(record)
        except CodecError as error:
            raise PackageError(f"{self.root}: tensor {record.name}: {error}") from error
        if self.keeps(record):
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

    def _check_row_shifts(self, record: TensorRecord) -> None:
        """Raises CodecError where a row's shift leads out of the finite patterns."""
        tables = [segments.table(record.dtype) for segments in record.all_segments]
        shifts = self.arrays.get(f"{record.name}.row_shifts")
        if tables[0].has_row_shifts and shifts is not None and shifts.dtype == "I8":
            for table, rows in zip(tables, np.array_split(cast(I8, shifts.array()), len(tables)), strict=True):
                table.row_starts(len(rows), rows)


def open_referenced(package: Package) -> "Checkpoint":
    """Open the source where the manifest says it is; its files must be as long as those that were converted.

    Raises:
        PackageError: a local source is gone, or is another one.
        CheckpointError: it cannot be opened.
    """
    from mxconv.checkpoint.object_store import is_store_url
    from mxconv.checkpoint.source import open_checkpoint

    source = package.manifest.source
    is_path = source.commit is None and not is_store_url(source.id)
    if is_path and not Path(source.id).exists():  # open_checkpoint would ask the Hub for it
        raise PackageError(
            f"{source.id}: no such file or folder; {package.root} references its weights there. Restore it, "
            "or convert again with --target include."
        )
    checkpoint = open_checkpoint(source.id, revision=source.commit)
    sizes = {record.path: record.num_bytes for record in source.files}
    found = checkpoint.file_sizes
    for path in checkpoint.weight_files:
        name = path.relative_to(checkpoint.root).as_posix()
        if sizes.get(name) != found[path]:
            checkpoint.close()
            recorded = f"a file of {sizes[name]:,}" if name in sizes else "other files"
            raise PackageError(
                f"{path}: {found[path]:,} bytes; {package.root} was converted from {recorded}. "
                "Restore the source, or convert again."
            )
    return checkpoint
