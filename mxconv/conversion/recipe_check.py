"""A conversion that must give a known package: compared with its recipe before anybody sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import relative_name
from mxconv.errors import PackageError
from mxconv.package.growing_shard import EncodedTensor, PlacedFile
from mxconv.package.head_screen import SCREEN_FILE
from mxconv.package.manifest import FileRecord, Manifest
from mxconv.package.recipe import Recipe, is_further, manifest_recipe, tensor_check
from mxconv.package.shard_layout import ShardLayout


class DifferentPackageError(PackageError):
    """What a source was converted to is not the package of the recipe."""


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
