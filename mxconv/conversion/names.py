"""What a package cannot hold under the name that it has: found before anything is written."""

from dataclasses import replace
from pathlib import Path

from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.drafts import DraftLevel
from mxconv.conversion.layout import Layout
from mxconv.errors import CheckpointError, MxconvError
from mxconv.package.manifest import FILE_NAME, check_relative


def relative_name(path: Path, checkpoint: Checkpoint) -> str:
    """A source file's name in manifest and package."""
    return path.relative_to(checkpoint.root).as_posix()


def draft_folder(number: int, draft: DraftLevel) -> str:
    """Where the files of a `--draft` go; numbers begin at 1."""
    return f"drafts/{number}-{draft.name}"


def unique_names(drafts: list[DraftLevel], codec: str) -> list[DraftLevel]:
    """Number the drafts whose folder has the name of another level: levels are chosen by name."""
    taken = {"target", codec}
    renamed = []
    for draft in drafts:
        name, number = draft.name, 2
        while name in taken:
            name, number = f"{draft.name}-{number}", number + 1
        taken.add(name)
        renamed.append(replace(draft, name=name))
    return renamed


def check_names(checkpoint: Checkpoint, layout: Layout, drafts: list[DraftLevel], links_target: bool) -> None:
    """Check the names of files and arrays.

    A source file of the name of one of ours would be linked in its place and, when an interrupted conversion goes on,
    be written to.

    Args:
        checkpoint: the source.
        layout: what is written.
        drafts: what goes along.
        links_target: whether the source's weight files go along.

    Raises:
        CheckpointError: a name in the source is one that we write, or none that a manifest may hold.
        MxconvError: the same for a draft.
    """
    ours = {FILE_NAME, *layout.indexes, *(shard.file_name for shard in layout.shards)}
    weights = [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]
    for path in [*weights, *checkpoint.companion_files]:
        name = path.relative_to(checkpoint.root).as_posix()
        if name in ours and (links_target or path not in weights):
            raise CheckpointError(
                f"{path}: has the name of a file that mxconv writes; another name is required. Rename it."
            )
        _check_path(name, f"{path}: ", CheckpointError)
    for number, draft in enumerate(drafts, 1):
        for file in draft.files:
            _check_path(
                f"{draft_folder(number, draft)}/{file.as_posix()}", f"--draft {draft.spec.subject}: ", MxconvError
            )
    written = layout.places.keys()
    for name in checkpoint.tensors:
        if name in written and all(array.name != name for array in layout.arrays.get(name, ())):
            raise CheckpointError(
                f"{checkpoint.tensors[name].path}: tensor {name} has the name of an array that mxconv writes; "
                "unique names are required. Rename the tensor in the checkpoint."
            )


def _check_path(name: str, label: str, error: type[MxconvError]) -> None:
    try:
        check_relative(name)
    except ValueError as reason:
        raise error(f"{label}{reason}. Rename it.") from reason
