"""The recipe of a package: its manifest and hashes without a weight, from which its source rebuilds it bit for bit.

    recipe = recipe_of(Path("package"))
    Path("package.json").write_bytes(recipe.to_bytes())

Normative text: formats/recipe.md. `mxconv.rebuild` builds packages from recipes.
"""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from mxconv import __version__
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import PackageError
from mxconv.package.manifest import FILE_NAME as MANIFEST
from mxconv.package.manifest import FileRecord, Manifest
from mxconv.package.package import Package
from mxconv.package.sealed_file import NO_DIGEST, read_sealed, sealed
from mxconv.package.shard_layout import smallest_limit
from mxconv.package.stored import StoredArray, tensor_arrays
from mxconv.package.tensor_record import Digest, Record, TensorRecord
from mxconv.progress import Progress, silent
from mxconv.workers import ByteCounter

FILE_NAME = "mxconv-recipe.json"  # in a repository
FURTHER = "mxconv-recipe.files"  # the folder of its further files there
DRAFT_FILE = "draft.safetensors"
DRAFTS = "drafts/"
SOURCE = "source/"  # of the compact files of a source that versions before sent along
CHUNK_BYTES = 1 << 22


class Recipe(Record):
    format: Literal["mxconv-recipe"] = "mxconv-recipe"
    format_version: Literal[1] = 1
    created_by: str = f"mxconv {__version__}"
    package: Manifest = Field(description="the manifest; `tensors` is empty, so is `draft_weights.tensors`")
    max_shard_bytes: Annotated[int, Field(ge=1, lt=2**63)] = Field(
        description="the smallest that gives the package's files"
    )
    further: list[FileRecord] = Field(
        description="files that no source gives, beside the recipe: of drafts, and draft.safetensors, the given codes"
    )
    base: dict[str, str] | None = Field(default=None, description="null; of a source that versions before sent along")
    checks: Annotated[str, Field(pattern="^([0-9a-f]{8})*$")] = Field(
        description="eight digits for each tensor, in the manifest's order: they tell which one differs"
    )
    recipe_sha256: Digest = Field(default=NO_DIGEST, description="of this file, with these 64 digits as zeros")

    @property
    def carries_source(self) -> bool:
        """Whether a version before sent the source along, in compact files, which this one does not read."""
        return self.needed != self.further

    @property
    def needed(self) -> list[FileRecord]:
        """The further files but those of a compact source."""
        return [record for record in self.further if not record.path.startswith(SOURCE)]

    def members(self) -> dict[str, Any]:
        """As the file has them."""
        return self.model_dump() | {"package": self.package.members()}

    def to_bytes(self) -> bytes:
        """The file's bytes, digest filled in."""
        return sealed(self.members() | {"recipe_sha256": NO_DIGEST})

    def differing(self, names: Iterable[str], checks: Iterable[str]) -> list[str]:
        """The names of tensors whose checks are not the recorded ones; all are in the manifest's order."""
        recorded = [self.checks[begin : begin + 8] for begin in range(0, len(self.checks), 8)]
        found = list(zip(names, checks, strict=True))
        if len(found) != len(recorded):
            return [name for name, _ in found]
        return [name for (name, check), known in zip(found, recorded, strict=True) if check != known]


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe.

    Raises:
        PackageError: it is missing, too long, not what the schema says, of another format version, or damaged.
    """
    recipe = read_sealed(path, Recipe, "A recipe is a file that `mxconv recipe` wrote.", "get the recipe again")
    if recipe.package.tensors:
        raise PackageError(
            f"{path}: package.tensors: {len(recipe.package.tensors)} records; none is required in a recipe. "
            "Write it again: mxconv recipe PACKAGE."
        )
    return recipe


def further_folder(file: Path) -> Path:
    """The folder beside a recipe in which its further files are."""
    return file.with_suffix(".files")


def tensor_check(sha256: str, arrays: Mapping[str, int]) -> str:
    """Eight digits that change with a tensor of the source or with what is stored of it.

    Args:
        sha256: of the 16-bit tensor.
        arrays: the CRC-32 of each stored array by its name.
    """
    text = sha256 + "".join(f" {name} {arrays[name]:08x}" for name in sorted(arrays))
    return f"{zlib.crc32(text.encode()):08x}"


def manifest_recipe(manifest: Manifest) -> Manifest:
    """The manifest as a recipe has it."""
    given = manifest.draft_weights
    kept = None if given is None else given.model_copy(update={"tensors": []})
    return manifest.model_copy(update={"tensors": [], "draft_weights": kept})


def recipe_of(
    path: Path,
    beside: Iterable[FileRecord] = (),
    progress: Progress = silent,
    *,
    with_checks: bool = True,
) -> Recipe:
    """The recipe of a package, whose weights are read for the checks of its tensors.

    Args:
        path: the package's folder.
        beside: further files that are none of the package's: its given codes.
        progress: told about the reading.
        with_checks: whether weights are read; without checks a recipe cannot tell which tensor differs.

    Raises:
        PackageError: the package is damaged, or of a version that wrote its manifest in another way.
    """
    with Package(path) as package:
        manifest = package.manifest
        if manifest.to_bytes() != (path / MANIFEST).read_bytes():
            raise PackageError(
                f"{path / MANIFEST}: written by {manifest.created_by} in another way than mxconv {__version__} writes "
                f"it; the same is required. Write it anew: mxconv verify {path} --write."
            )
        shards: dict[str, list[list[SourceTensor]]] = {}
        advance = ByteCounter("read package", sum(file.num_bytes for file in manifest.files), progress)
        checks = []
        linked = {record.path for record in manifest.files if record in manifest.source.files}
        for record in manifest.tensors:
            arrays = _written_arrays(package, record, linked)
            if with_checks:
                checks.append(tensor_check(record.sha256, {a.name: _checksum(a, advance) for a in arrays}))
            for name in {Path(array.path).name for array in arrays}:
                shards.setdefault(name, []).append([a for a in arrays if Path(a.path).name == name])
        layouts = [[[_stored(a) for a in arrays] for arrays in tensors] for tensors in shards.values()]
        recipe = Recipe(
            package=manifest_recipe(manifest),
            max_shard_bytes=smallest_limit(layouts),
            further=[*(record for record in manifest.files if is_further(record.path)), *beside],
            checks="".join(checks),
        )
    return Recipe.model_validate_json(recipe.to_bytes())


def is_further(name: str) -> bool:
    """Whether a file of a package comes from no source: of other drafts."""
    return name.startswith(DRAFTS)


def _written_arrays(package: Package, record: TensorRecord, linked: set[str]) -> list[SourceTensor]:
    """The arrays that the conversion wrote for a tensor: not those in files of the source."""
    names = [*(array.name for array in tensor_arrays(record)), record.name]
    found = [package.arrays[name] for name in names if name in package.arrays]
    return [array for array in found if Path(array.path).name not in linked]


def _stored(array: SourceTensor) -> StoredArray:
    return StoredArray(array.name, array.dtype, array.shape)


def _checksum(array: SourceTensor, advance: ByteCounter) -> int:
    """The CRC-32 of an array's bytes."""
    content, checksum = array.array().reshape(-1).view(np.uint8), 0
    for begin in range(0, len(content), CHUNK_BYTES):
        piece = content[begin : begin + CHUNK_BYTES]
        checksum = zlib.crc32(piece.data, checksum)
        advance(len(piece))
    array.release()
    return checksum
