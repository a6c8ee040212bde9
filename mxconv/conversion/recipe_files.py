"""The recipe of a package with the files that no source gives: other drafts, given codes."""

import shutil
from pathlib import Path
from typing import cast

from mxconv.arch.families.registry import describe_values
from mxconv.arrays import U8, U16
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.errors import PackageError
from mxconv.package.head_screen import STEM, HeadScreen, read_head_screen
from mxconv.package.manifest import FileRecord
from mxconv.package.package import Package
from mxconv.package.package_folder import damaged_files
from mxconv.package.recipe import DRAFT_FILE, Recipe, is_further, recipe_of
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
