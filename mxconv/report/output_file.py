"""Files that a command writes: checked before long work, written beside their place, and renamed when complete."""

import os
from collections.abc import Callable
from pathlib import Path

from mxconv.errors import MxconvError

SUFFIXES = (".png", ".svg")  # of pictures


def check_suffix(path: Path) -> None:
    """Raise MxconvError unless the name of a file ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise MxconvError(
            f"{path}: a picture that ends in {path.suffix!r}; .png or .svg is required. Choose one of the two."
        )


def check_output(path: Path, force: bool | None) -> None:
    """Check before long work that a file can be written; None: the command has no --force.

    Raises:
        MxconvError: it exists and `force` is not set, it is a folder, or its folder does not exist.
    """
    if path.is_dir():
        raise MxconvError(f"{path}: is a folder; a file to write is required. Choose another name.")
    if os.path.lexists(path) and not force:
        remedy = "Choose another name." if force is None else "Choose another name, or give --force."
        raise MxconvError(f"{path}: exists; nothing is overwritten. {remedy}")
    if not path.parent.is_dir():
        raise MxconvError(f"{path}: its folder {path.parent} does not exist; it must. Create it first.")


def write_output(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file of the same suffix beside `path`, and rename it when it is complete.

    Raises:
        MxconvError: the file system refuses.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise MxconvError(f"{path}: cannot be written ({error.strerror}). Check space and permissions.") from error
    finally:
        partial.unlink(missing_ok=True)
