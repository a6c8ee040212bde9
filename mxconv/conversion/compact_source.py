"""The source of a package, carried beside its recipe in two thirds of its bytes: formats/compact.md, file by file."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from mxconv.checkpoint.compact.compact_file import compress_file, decompress_file
from mxconv.checkpoint.compact.compact_layout import read_preamble
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.checkpoint.regular_file import open_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.preparation import relative_name
from mxconv.errors import CheckpointError, PackageError
from mxconv.package.manifest import FileRecord, SourceRecord
from mxconv.package.recipe import SOURCE
from mxconv.progress import Progress

SUFFIX = ".compact"  # of weight files


def write_compact_source(
    checkpoint: Checkpoint,
    record: SourceRecord,
    folder: Path,
    base: Checkpoint | None,
    progress: Progress,
    num_threads: int,
) -> list[FileRecord]:
    """Write the files of a source into a folder.

    Args:
        checkpoint: the source, open.
        record: what its files must be.
        folder: of the recipe's further files.
        base: a checkpoint beside whose weights these are coded.
        progress: told about every chunk.
        num_threads: of the coder.

    Raises:
        PackageError: it is another source, or none of safetensors files.
    """
    if checkpoint.container != "safetensors" or checkpoint.is_on_store:
        kind = "on an object store" if checkpoint.is_on_store else f"a {checkpoint.container} checkpoint"
        raise PackageError(f"{checkpoint.id}: {kind}; safetensors files in a folder or on the Hub are required.")
    known = {each.path: each.sha256 for each in record.files}
    (folder / SOURCE).mkdir(parents=True)
    for path in [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]:
        name = relative_name(path, checkpoint)
        if known.pop(name, None) != sha256_file(path):
            raise PackageError(f"{path}: is not what the package was made of. Give the package's own source.")
        if path == checkpoint.index_file:
            shutil.copyfile(path, folder / SOURCE / name)
            continue
        target = folder / SOURCE / (name + SUFFIX)
        compress_file(path, target, None if base is None else _nearest(path, base), progress, num_threads)
    for path in checkpoint.companion_files:
        target = folder / SOURCE / relative_name(path, checkpoint)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    paths = sorted(path for path in (folder / SOURCE).rglob("*") if path.is_file())
    return [
        FileRecord(path=path.relative_to(folder).as_posix(), num_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in paths
    ]


def restore_source(
    further: Sequence[FileRecord],
    folder: Path,
    target: Path,
    base: Checkpoint | None,
    progress: Progress,
    num_threads: int,
) -> None:
    """Restore the files of a source.

    Args:
        further: the recipe's further files, their hashes compared.
        folder: in which they are.
        target: an empty folder.
        base: the checkpoint beside which they were coded.
        progress: told about every chunk.
        num_threads: of the decoder.

    Raises:
        CheckpointError: a file is damaged, or coded beside another base.
    """
    bases = {} if base is None else {sha256_file(path): path for path in base.weight_files}
    for record in further:
        if not record.path.startswith(SOURCE):
            continue
        path, name = folder / record.path, record.path.removeprefix(SOURCE)
        if not name.endswith(SUFFIX):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target / name)
            continue
        with open_file(path) as file:
            sha256 = read_preamble(path, file).base_sha256
        if base is not None and sha256 is not None and sha256 not in bases:
            raise CheckpointError(
                f"{path}: coded beside a file with SHA-256 {sha256}, which {base.id} does not have; that base is "
                "required. Get the recipe again."
            )
        beside = None if sha256 is None else bases.get(sha256)
        decompress_file(path, target / name.removesuffix(SUFFIX), beside, progress, num_threads)


def _nearest(path: Path, base: Checkpoint) -> Path | None:
    """The file of the base that has most tensors of a file; None where none has any."""
    file = MappedFile(path)
    names = set(file.entries)
    file.close()
    windows = base.windowed_files
    best = max(base.weight_files, key=lambda each: len(names & set(windows[each].entries)) if each in windows else 0)
    return best if best in windows and names & set(windows[best].entries) else None
