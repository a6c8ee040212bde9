"""What a push uploads of a package: its manifest and the files that it lists, or the drafts alone."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.checkpoint.regular_file import open_file
from mxconv.errors import PackageError
from mxconv.package.level_record import LevelRecord
from mxconv.package.manifest import FILE_NAME, FileRecord, Manifest, read_manifest
from mxconv.package.package_folder import damaged_files
from mxconv.progress import Progress, silent


@dataclass(frozen=True)
class Publication:
    """A package as others will have it."""

    root: Path
    manifest: Manifest
    manifest_bytes: bytes
    files: tuple[FileRecord, ...]  # the manifest itself not among them


def prepare_publication(package: Path, *, drafts_only: bool = False, progress: Progress = silent) -> Publication:
    """Choose what to upload, and hash it.

    Args:
        package: the package's folder.
        drafts_only: leave the target out; the uploaded manifest then references it at the source's id and commit.
        progress: told about every file.

    Raises:
        PackageError: a file is not what the manifest says, or nobody else could find the target.
    """
    manifest = read_manifest(package)
    source = manifest.source
    if manifest.levels[0].location == "source" and source.commit is None:
        raise PackageError(
            f"{package}: references its target in the folder {source.id}, which nobody else has; a target on the Hub "
            "or in the package is required. Convert again with --target include, or from the model's Hub id."
        )
    with open_file(package / FILE_NAME) as file:
        content = file.read()
    if drafts_only and manifest.levels[0].location == "package":
        manifest = without_target(manifest, str(package))
        content = manifest.to_bytes()
    if damaged := damaged_files(package, manifest.files, progress):
        raise PackageError(
            f"{package / damaged[0]}: its SHA-256 is not the one in {FILE_NAME}; only whole packages are pushed. "
            "Convert again."
        )
    return Publication(package, manifest, content, tuple(manifest.files))


def without_target(manifest: Manifest, label: str) -> Manifest:
    """The manifest of the same package with its target referenced, not included.

    Args:
        manifest: of a package that includes its target.
        label: what the errors call it.

    Raises:
        PackageError: the target is found nowhere else.
    """
    source, target = manifest.source, manifest.levels[0]
    of_source = [record for record in manifest.files if record in source.files]  # same name, length and hash
    if target.codec == "bsfp":
        raise PackageError(
            f"{label}: --drafts-only of a BSFP package; its draft and its target share the same bytes, so one cannot "
            "go without the other. Push it whole, or convert with --codec mxfp4."
        )
    if source.commit is None:
        raise PackageError(
            f"{label}: --drafts-only, but it was converted from the folder {source.id}; a target on the Hub is "
            "required for others to find it. Convert again from the model's Hub id, or push without --drafts-only."
        )
    if not {record.path for record in of_source}.issuperset(target.files):
        raise PackageError(
            f"{label}: --drafts-only, but its 16-bit target was made by the conversion and is on the Hub nowhere else; "
            "16-bit safetensors in the source are required. Push without --drafts-only."
        )
    levels: list[LevelRecord] = [target.model_copy(update={"location": "source", "files": []}), *manifest.levels[1:]]
    return manifest.model_copy(
        update={
            "levels": levels,
            "options": manifest.options.model_copy(update={"target": "reference"}),
            "lossless": False,
            "files": [record for record in manifest.files if record not in of_source],
            "certificate": None,  # it was about another set of files
        }
    )
