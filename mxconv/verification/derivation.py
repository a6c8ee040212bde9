"""A package derived again from its source and compared byte by byte; nothing is written."""

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.regular_file import check_regular_file, open_file, sha256_file
from mxconv.checkpoint.source import Checkpoint, hash_file
from mxconv.conversion.describe import describe, source_records
from mxconv.conversion.encode import encode_tensor
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import Preparation, prepare
from mxconv.conversion.recipes import RecipeCheck
from mxconv.conversion.survey import Survey
from mxconv.errors import PackageError
from mxconv.package.growing_shard import EncodedTensor
from mxconv.package.manifest import FILE_NAME, FileRecord, OptionsRecord
from mxconv.package.package import Package, inside
from mxconv.progress import Progress
from mxconv.verification.tensor_proof import is_stored
from mxconv.workers import Advance, ByteCounter, Executor, beside, result_of, unless_failed

Piece = tuple[Survey, Collection[str]]  # a tensor, and the names of its arrays


def check_derived(
    package: Package,
    checkpoint: Checkpoint,
    options: QuantizeOptions,
    recipe: RecipeCheck,
    workers: Executor,
    progress: Progress,
) -> None:
    """Do all of a conversion but the writing, and compare what would be written.

    Args:
        package: open.
        checkpoint: its source.
        options: that it was made with, as the recipe says.
        recipe: of the package itself.
        workers: who encodes.
        progress: told about every slice.

    Raises:
        PackageError: a byte differs; file and array are named.
    """
    advance = ByteCounter("hash source", sum(checkpoint.file_sizes.values()), progress)
    with beside(workers, hash_file, list(checkpoint.hashed_files.values()), advance) as hashes:
        preparation = prepare(checkpoint, options, progress, workers)
        try:
            encoded = _compare_shards(package, preparation, workers, progress, hashes)
            sources = source_records(checkpoint, result_of(hashes))
            files = recipe.recipe.package.files
            _compare_files(package.root, files, preparation, sources, recipe)
            manifest = recipe.compared(describe(preparation, sources, encoded, files), encoded, preparation.layout)
        finally:
            preparation.close()
        checkpoint.check_unchanged()
    if manifest.to_bytes() != (package.root / FILE_NAME).read_bytes():
        raise different(package.root / FILE_NAME, "its content differs")


def different(path: Path, what: str) -> PackageError:
    """The error for a file that its source does not give."""
    return PackageError(
        f"{path}: {what}; the package is not what its source gives. Do not use it, or convert the source again."
    )


@dataclass(frozen=True)
class CompareTensor:
    """A task: encode a tensor, and compare its arrays with the package's."""

    package: Package
    options: OptionsRecord

    def __call__(self, piece: Piece, advance: Advance) -> EncodedTensor:
        def compare(name: str, offset: int, part: NDArray[np.generic]) -> None:
            if not is_stored(self.package, name, offset, part):
                raise different(Path(self.package.arrays[name].path), f"array {name} differs")

        survey, arrays = piece
        encoded = encode_tensor(survey, self.options, compare, arrays, advance)
        for array in (self.package.arrays[name] for name in arrays):
            array.release(0, max(array.shape[:1], default=1))
        return encoded


def _compare_shards(
    package: Package, preparation: Preparation, workers: Executor, progress: Progress, hashes: Future[list[str]]
) -> dict[str, EncodedTensor]:
    layout, surveys = preparation.layout, preparation.surveys
    for shard in layout.shards:
        path = inside(package.root, shard.file_name)
        with open_file(path) as file:
            if file.read(len(shard.header)) != shard.header or check_regular_file(path) != shard.num_bytes:
                raise different(path, "names, shapes or places of its arrays differ")
    pieces = [(survey, [array.name for array in layout.arrays.get(survey.plan.name, ())]) for survey in surveys]
    advance = ByteCounter("encode", sum(survey.plan.num_bytes for survey in surveys), progress)
    compared = workers.map(CompareTensor(package, preparation.record), pieces, unless_failed(hashes, advance))
    return {encoded.name: encoded for encoded in compared}


def _compare_files(
    root: Path, records: list[FileRecord], preparation: Preparation, sources: list[FileRecord], recipe: RecipeCheck
) -> None:
    """Compare what is no shard, and which files there are."""
    contents, placed = preparation.contents, preparation.placed_files(recipe.further)
    made = {*contents, *(file.name for file in placed), *(shard.file_name for shard in preparation.layout.shards)}
    recorded = {record.path: record.sha256 for record in records}
    if names := made - recorded.keys():
        raise different(root / min(names), f"is not in {FILE_NAME}, and its source gives it")
    if names := recorded.keys() - made:
        raise different(root / min(names), "its source gives no such file")
    known = {record.path: record.sha256 for record in sources} if preparation.links_target else {}
    for file in placed:
        if (known.get(file.name) or sha256_file(file.source)) != recorded[file.name]:
            raise different(root / file.name, "its content differs")
    for name, content in contents.items():
        with open_file(path := inside(root, name)) as opened:
            if opened.read(len(content) + 1) != content:
                raise different(path, "its content differs")
