"""Re-derive or refuse: a package from its recipe, or a package's every byte from its source.

    build(Path("package.json"), Path("package"))
    check_rebuild(Path("package"))

A package is a function of its source, its options and the version of the formats. A source that gives one other byte
is an error, and nothing is left that looks like the package. formats/recipe.md says what a recipe holds.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from mxconv.checkpoint.hub import fetch_files
from mxconv.checkpoint.object_store import is_store_url
from mxconv.checkpoint.safetensors_header import shown
from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.conversion.preparation import relative_name
from mxconv.conversion.recipes import RecipeCheck, make_recipe, write_given_codes
from mxconv.convert import convert
from mxconv.errors import PackageError
from mxconv.open_source import open_source
from mxconv.package.manifest import Manifest
from mxconv.package.package import Package
from mxconv.package.package_folder import built_folder, damaged_files, fetch_file
from mxconv.package.recipe import DRAFT_FILE, FILE_NAME, FURTHER, Recipe, further_folder, read_recipe, recipe_of
from mxconv.package.staging import Target, check_target
from mxconv.progress import Progress, silent
from mxconv.system.disk import check_output, remove, write_output
from mxconv.system.processor import usable_processors
from mxconv.verification.derivation import check_derived
from mxconv.workers import ByteCounter, Executor, Workers

Executors = Callable[[], Executor]


def write_recipe(package: Path, file: Path, *, force: bool = False, progress: Progress = silent) -> Recipe:
    """Write the recipe of a package, and its further files into a folder of the same name that ends in `.files`.

    Args:
        package: the package's folder; every hash in it is compared.
        file: to write; its name ends in .json.
        force: replace an existing recipe and its folder.
        progress: told about hashing and reading.

    Raises:
        MxconvError: the package is damaged, or something is in the way.
    """
    if file.suffix != ".json":
        raise PackageError(f"{file}: ends in {file.suffix!r}; a name that ends in .json is required. Choose another.")
    check_output(file, force)
    folder = further_folder(file)
    if os.path.lexists(folder) and not force:
        raise PackageError(f"{folder}: exists; the recipe's further files go there. Choose another output, or --force.")
    with TemporaryDirectory(prefix=".mxconv-recipe-", dir=file.absolute().parent) as scratch:
        recipe = make_recipe(package, made := Path(scratch, folder.name), progress)
        remove(folder)
        if made.exists():
            made.rename(folder)

        def write(path: Path) -> None:
            path.write_bytes(recipe.to_bytes())

        write_output(file, write)
    return recipe


def build(
    file: Path,
    target: Target,
    source: str | None = None,
    progress: Progress = silent,
    executor: Executors | None = None,
    *,
    num_threads: int = 1,
    memory_bytes: int | None = None,
    force: bool = False,
) -> Manifest:
    """Build a package from a recipe.

    Args:
        file: the recipe; its further files are in the folder of the same name that ends in `.files`.
        target: the package's folder, here or on a store.
        source: the checkpoint, in any place; None: where the recipe says.
        progress: told about every slice.
        executor: makes who does the work; threads if None.
        num_threads: of these.
        memory_bytes: that a worker may need.
        force: replace a package in a folder here.

    Raises:
        MxconvError: the recipe or one of its files is damaged, the source cannot be had, or what it gives is another
            package; file and tensor are named, and nothing is left at `target`.
    """
    recipe, folder = read_recipe(file), further_folder(file)
    check_target(target, force)
    if source is None and recipe.carries_source:
        record = recipe.package.source
        raise PackageError(
            f"{file}: {shown(recipe.created_by)} wrote it with the source in compact files, which later versions do "
            f"not read; the source itself is required, {shown(record.id)}. Take it from there, or from a copy: "
            f"mxconv build {file} --source {'SOURCE' if record.commit is None else shown(record.id)} -o FOLDER."
        )
    if recipe.needed and (damaged := damaged_files(folder, recipe.needed, progress)):
        raise PackageError(
            f"{folder / damaged[0]}: its SHA-256 is not the one in {file}; the file that was written with the recipe "
            "is required. Get it again."
        )
    has_codes = recipe.package.draft_weights is not None
    check = RecipeCheck(recipe, folder, folder / DRAFT_FILE if has_codes else None)
    beside = target.absolute().parent if isinstance(target, Path) else None
    with _source(source, check, beside, progress) as checkpoint:
        options = check.options(num_threads, memory_bytes, force)
        return convert(checkpoint, target, options, progress, executor, check)


def check_rebuild(
    path: Path, source: str | None = None, progress: Progress = silent, executor: Executors | None = None
) -> None:
    """Convert a package's source again, in bounded memory, and compare every byte; nothing is written.

    The codes that a package was given are taken from it: no source gives them. So are the files of other drafts.

    Args:
        path: the package's folder.
        source: the checkpoint, in any place; None: where the manifest says.
        progress: told about every slice.
        executor: makes who does the work; threads if None.

    Raises:
        PackageError: a byte differs; file and array are named.
        CheckpointError: the source cannot be had.
    """
    recipe = recipe_of(path, with_checks=False)
    with TemporaryDirectory(prefix="mxconv-rebuild-") as scratch, Package(path) as package:
        draft_file = None
        if package.manifest.draft_weights is not None:
            draft_file = Path(scratch, DRAFT_FILE)
            write_given_codes(package, draft_file)
        check = RecipeCheck(recipe, path, draft_file)
        with _source(source, check, Path(scratch), progress) as checkpoint:
            options = check.options(usable_processors(), None, False)
            workers = Workers(options.num_threads) if executor is None else executor()
            check_derived(package, checkpoint, options, check, workers, progress)


def build_in_cache(repo_id: str, snapshot: Path, progress: Progress = silent) -> Path:
    """The package that a repository on the Hub holds the recipe of, built once into a folder of the cache.

    Args:
        repo_id: `owner/name`.
        snapshot: its folder in the Hub cache, in which the recipe is.
        progress: told about every slice.

    Raises:
        MxconvError: as of `build`.
    """
    root = built_folder(repo_id, snapshot)
    with FileLock(root.with_name(root.name + ".lock")):
        if not root.exists():
            build(fetch_recipe(repo_id, snapshot.name), root, progress=progress, num_threads=usable_processors())
    return root


def fetch_recipe(repo_id: str, commit: str) -> Path:
    """The recipe of a repository in the Hub cache, its further files beside it; raises PackageError where its source is
    on no Hub: a stranger's recipe opens no path or URL of its choice."""
    root = fetch_files(repo_id, [FILE_NAME], commit)
    recipe = read_recipe(root / FILE_NAME)
    if recipe.package.source.commit is None and not recipe.carries_source:
        raise PackageError(
            f"{repo_id}: its recipe's source is {shown(recipe.package.source.id)}; a Hub id and commit are required of "
            f"a repository. Say where the source is: mxconv build {root / FILE_NAME} --source SOURCE -o FOLDER."
        )
    if further := [f"{FURTHER}/{record.path}" for record in recipe.needed]:
        fetch_files(repo_id, further, commit)
    return root / FILE_NAME


@contextmanager
def _source(given: str | None, check: RecipeCheck, beside: Path | None, progress: Progress) -> Iterator[Checkpoint]:
    """The source of a recipe, opened: where it is given, or where the recipe says.

    One whose files become part of the package, and which is on an object store, is in a folder for a while.
    """
    record = check.recipe.package.source
    with TemporaryDirectory(prefix=".mxconv-source-", dir=beside) as scratch:
        if given is None and record.commit is None and not is_store_url(record.id) and not Path(record.id).exists():
            raise PackageError(
                f"{record.id}: no such file or folder; the recipe's source is required there, or anywhere else. "
                "Say where it is: --source SOURCE."
            )
        with open_source(given or record.id, revision=record.commit if given is None else None) as checkpoint:
            check.check_source(checkpoint)
            if checkpoint.snapshot is None or not check.links_target:
                yield checkpoint
                return
            for path in checkpoint.companion_files:
                copy = Path(scratch, relative_name(path, checkpoint))
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(path.read_bytes())
            advance = ByteCounter("fetch source", sum(each.num_bytes for each in record.files), progress)
            for each in record.files:
                fetch_file(checkpoint.snapshot.store, each, Path(scratch, each.path), advance)
        with open_checkpoint(scratch) as checkpoint:
            yield checkpoint
