"""The file that `mxconv generate --trace` writes."""

from pathlib import Path
from typing import Any


def check_new_trace(path: Path) -> None:
    """Before the work, not after it: a file that can be created."""
    from mxconv.errors import ModelError

    if path.exists():
        raise ModelError(f"{path}: exists; nothing is overwritten. Choose another file.")
    if not path.parent.is_dir():
        raise ModelError(f"{path}: its folder does not exist; an existing folder is required. Create it first.")


def write_trace(path: Path, lines: list[dict[str, Any]]) -> None:
    """A line an entry."""
    import json

    from mxconv.errors import ModelError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}). Check the path.") from error
