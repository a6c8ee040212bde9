"""Writes a package's recipe with the files that no source gives; checks that a conversion gives a recipe's package."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mxconv.arch.families.registry import describe_values
from mxconv.arrays import U8, U16
from mxconv.checkpoint.regular_file import read_json_object, sha256_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import relative_name
from mxconv.errors import DifferentPackageError, PackageError
from mxconv.package.growing_shard import EncodedTensor, PlacedFile
from mxconv.package.head_screen import STEM, HeadScreen, read_head_screen
from mxconv.package.level_record import SCREEN_FILE
from mxconv.package.manifest import FileRecord, Manifest
from mxconv.package.package import Package
from mxconv.package.package_folder import damaged_files
from mxconv.package.recipe import DRAFT_FILE, Recipe, is_further, manifest_recipe, recipe_of, tensor_check
from mxconv.package.shard_layout import ShardLayout
from mxconv.package.stored import stored_shape
from mxconv.progress import Progress, silent


def make_recipe(package: Path, folder: Path, progress: Progress = silent) -> Recipe:
    """The recipe of a package; its further files are copied.

    Args:
        package: the package's folder; every hash in it is compared.
        folder: where its further files go; nothing is written where there are none.
        progress: told about hashing and reading.

    Raises:
        PackageError: a file is not what the manifest says, or cannot be written.
    """
    with Package(package) as opened:
        manifest = opened.manifest
        if damaged := damaged_files(package, manifest.files, progress):
            raise PackageError(
                f"{package / damaged[0]}: its SHA-256 is not the one in the manifest; a whole package is required. "
                "Convert again."
            )
        beside = []
        if manifest.draft_weights is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_given_codes(opened, path := folder / DRAFT_FILE)
            beside = [FileRecord(path=DRAFT_FILE, num_bytes=path.stat().st_size, sha256=sha256_file(path))]
    for record in manifest.files:
        if is_further(record.path):
            (folder / record.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package / record.path, folder / record.path)
    return recipe_of(package, beside, progress)


def write_given_codes(package: Package, path: Path) -> None:
    """Write the codes that a package was given as a draft file; raises PackageError where that is not possible."""
    manifest = package.manifest
    assert manifest.draft_weights is not None, "of a package with given codes"
    names = set(manifest.draft_weights.tensors)
    records = [record for record in manifest.tensors if record.name in names]
    screen = _screen(package)
    described = {key: value for key, value in manifest.draft_weights.description.items() if key != STEM}
    with DraftFileWriter(path, {r.name: stored_shape(r) for r in records}, manifest.options.codec) as writer:
        for record in records:
            codes, scales = (package.arrays[f"{record.name}.{part}"] for part in ("codes", "scales"))
            writer.write(record.name, cast(U8, codes.array()), cast("U8 | U16", scales.array()))
            codes.release()
            scales.release()
        writer.commit(described, screen)


def _screen(package: Package) -> HeadScreen | None:
    """The screen of the draft's output head, where it has one."""
    records = [level.screen for level in package.manifest.levels if level.screen is not None]
    if not records:
        return None
    described = describe_values(read_json_object(package.root / "config.json", unique_keys=False))
    head = described.vocab_size, described.hidden_size
    return read_head_screen(package.arrays, records[0], head, str(package.root))


@dataclass(frozen=True)
class RecipeCheck:
    """A recipe, the folder of the files that no source gives, and the file of the codes that were given."""

    recipe: Recipe
    folder: Path
    draft_file: Path | None

    @property
    def further(self) -> list[PlacedFile]:
        """The package's files that lie beside the recipe."""
        return [
            PlacedFile(record.path, self.folder / record.path, link=True)
            for record in self.recipe.further
            if is_further(record.path)
        ]

    def options(self, num_threads: int, memory_bytes: int | None, force: bool) -> QuantizeOptions:
        """The options that the package was made with."""
        package = self.recipe.package
        files = {record.path for record in package.files}
        decisive = {name: getattr(package.options, name) for name in type(package.options).model_fields}
        return QuantizeOptions(
            **decisive | {"skip": tuple(package.options.skip)},
            draft_weights=None if self.draft_file is None else str(self.draft_file),
            head_screen=SCREEN_FILE in files,
            max_shard_bytes=self.recipe.max_shard_bytes,
            links_target=self.links_target,
            num_threads=num_threads,
            memory_bytes=memory_bytes,
            force=force,
        )

    @property
    def links_target(self) -> bool:
        """Whether the source's own weight files are part of the package."""
        return all(record in self.recipe.package.files for record in self.recipe.package.source.files)

    def check_source(self, checkpoint: Checkpoint) -> None:
        """Raises DifferentPackageError where a weight file of the source is missing, or of another length; hashes are
        compared later, when they are known."""
        sizes = {relative_name(path, checkpoint): size for path, size in checkpoint.file_sizes.items()}
        for record in self.recipe.package.source.files:
            found = sizes.pop(record.path, None)
            if found != record.num_bytes:
                is_there = "is missing" if found is None else f"has {found:,} bytes"
                raise DifferentPackageError(
                    f"{checkpoint.id}: {record.path} {is_there}; the recipe was made of a source where it has "
                    f"{record.num_bytes:,}. Give that source."
                )
        if sizes:
            raise DifferentPackageError(
                f"{checkpoint.id}: has {min(sizes)}, which the recipe's source had not; the same files are required. "
                "Give that source."
            )

    def compared(self, manifest: Manifest, encoded: Mapping[str, EncodedTensor], layout: ShardLayout) -> Manifest:
        """The recipe's own manifest, tensors filled in, where everything is the same to the byte.

        Args:
            manifest: of what was converted now.
            encoded: its tensors.
            layout: which array is in which file.

        Raises:
            DifferentPackageError: the source or the package is another one; names the file, and the tensor where one
                is known.
        """
        package = self.recipe.package
        names = [record.name for record in manifest.tensors]
        checks = [
            tensor_check(each.sha256, dict.fromkeys(arrays, 0) | each.arrays)
            for each, arrays in ((encoded[name], [a.name for a in layout.arrays.get(name, ())]) for name in names)
        ]
        different = self.recipe.differing(names, checks)
        tensor = f"; of its tensors {different[0]} is the first that differs" if different else ""
        label = package.source.id
        _compare(
            package.source.files, manifest.source.files, f"source {label}", tensor, "Give the recipe's own source."
        )
        _compare(
            package.files,
            manifest.files,
            "package",
            tensor,
            f"The recipe's package was written by {package.created_by}, this is {manifest.created_by}: it is another "
            "package than its source gives.",
        )
        made = manifest.model_copy(update=self._free_members(manifest))
        recorded = manifest_recipe(made)
        members = [name for name in type(made).model_fields if getattr(recorded, name) != getattr(package, name)]
        if not members and f'"manifest_sha256": "{package.manifest_sha256}"'.encode() not in made.to_bytes()[-100:]:
            members = ["tensors"]
        if members:
            raise DifferentPackageError(
                f"mxconv.json: {members[0]} is not that of the recipe{tensor}. The recipe's package was written by "
                f"{package.created_by}, this is {manifest.created_by}: it is another package than its source gives."
            )
        return made

    def _free_members(self, manifest: Manifest) -> dict[str, Any]:
        """The members of the recipe's manifest that no source decides: names, what others measured, further drafts."""
        package = self.recipe.package
        given, made = package.draft_weights, manifest.draft_weights
        if given is not None and made is not None:
            given = given.model_copy(update={"tensors": made.tensors})
        return {
            "created_by": package.created_by,
            "files": package.files,  # compared, and in an order of their own
            "source": manifest.source.model_copy(update={"id": package.source.id, "commit": package.source.commit}),
            "draft_weights": given,
            "levels": [*manifest.levels[:2], *package.levels[2:]],
            "certificate": package.certificate,
            "evaluation": package.evaluation,
            "tuned": package.tuned,
            "manifest_sha256": package.manifest_sha256,
        }


def _compare(known: list[FileRecord], found: list[FileRecord], label: str, tensor: str, what_to_do: str) -> None:
    """Raises DifferentPackageError for the first file, by name, that is missing, further or another one."""
    recorded, made = ({record.path: record for record in records} for records in (known, found))
    for name in sorted({*recorded, *made}):
        one, other = recorded.get(name), made.get(name)
        if one == other:
            continue
        if one is None or other is None:
            raise DifferentPackageError(
                f"{label}: {name} is {'missing' if other is None else 'there, which the recipe does not have'}; the "
                f"same files are required. {what_to_do}"
            )
        raise DifferentPackageError(
            f"{label}: {name} has SHA-256 {other.sha256}{tensor}; the recipe's {one.sha256} is required. {what_to_do}"
        )
