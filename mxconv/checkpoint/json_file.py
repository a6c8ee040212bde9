"""JSON that came from somebody else: bounded, UTF-8, and with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import CheckpointError

MAX_JSON_BYTES = 100_000_000  # the index of a model with a million tensors is about this long


def parse_json_object(raw: bytes, label: str, *, unique_keys: bool) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        raw: the text, UTF-8.
        label: what the errors call it, normally the path of the file.
        unique_keys: refuse an object, at any depth, that has the same key twice.

    Raises:
        CheckpointError: it is no UTF-8, no JSON, no object, or has a key twice.
    """

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(
                f"{label}: the JSON key {twice!r} stands twice in one object; keys must be unique. "
                "Download or export the file again."
            )
        return members

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=refuse_duplicates if unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{label}: no valid JSON in UTF-8 ({error}); a JSON object is required. Download or export the file again."
        ) from error
    if not isinstance(parsed, dict):
        raise CheckpointError(
            f"{label}: a JSON {type(parsed).__name__} is at the top; a JSON object is required. "
            "Download or export the file again."
        )
    return parsed


def read_json_object(path: Path, *, unique_keys: bool) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        CheckpointError: it cannot be read, is longer than 100 MB, or `parse_json_object` refuses it.
    """
    num_bytes = check_regular_file(path)
    if num_bytes > MAX_JSON_BYTES:
        raise CheckpointError(
            f"{path}: {num_bytes:,} bytes long; at most {MAX_JSON_BYTES:,} bytes of JSON are read. "
            "Check that it is the file its name says."
        )
    with open_file(path) as file:
        return parse_json_object(file.read(num_bytes), str(path), unique_keys=unique_keys)
