"""JSON files that carry their own SHA-256: the manifest of a package, and its recipe.

The last member is the digest of the file's bytes with its 64 digits as zeros, so that no byte can change unnoticed.
What earlier versions wrote and this one has no more is refused with what to do instead: a feature that leaves adds its
line to `REMOVED_KINDS` or `REMOVED_MEMBERS`. `--draft` asks the same table.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mxconv.checkpoint.regular_file import MAX_JSON_BYTES, check_regular_file, open_file, parse_json_object
from mxconv.checkpoint.safetensors_header import shown
from mxconv.errors import CheckpointError, PackageError

# kinds of levels and of `--draft`
REMOVED_KINDS = {
    "early-exit": "Take the plug-in, `--draft examples/papers/swift.py:EarlyExitKind`",
    "hydra": "Take Medusa's heads, `--draft medusa:PATH_OR_ID`, or an EAGLE-3 head, `--draft eagle3:PATH_OR_ID`",
    "int8-kv": "Take `--draft streaming`, which reads less of the cache in less time",
    "layer-skip": "Take the plug-in that chooses what to leave out, `--draft examples/papers/swift.py:SwiftKind`",
    "mx2": "Take the package's 4-bit level, with `mxconv quantize --calibrate`, and a look-up below it",
    "p-eagle": "Take an EAGLE-3 head, `--draft eagle3:PATH_OR_ID`, or a DFlash head, `--draft dflash:PATH_OR_ID`",
    "stand": "Take the plug-in of that name, `--draft examples/papers/stand.py:StandKind`",
    "swift": "Take the plug-in of that name, `--draft examples/papers/swift.py:SwiftKind`",
    "token-recycling": "Take the plug-in, `--draft examples/papers/token_recycling.py:TokenRecyclingKind`",
}
# members of levels
REMOVED_MEMBERS = {
    "vocabulary": (
        "a draft vocabulary (`--draft-vocabulary`), which was removed",
        "Take `--calibrate` with its head screen, which saves the same time and drafts every token",
    ),
}


def refuse_removed(members: dict[str, Any], path: Path) -> None:
    """Check that the levels of a manifest, or of the one in a recipe, are of kinds that there still are.

    Args:
        members: of the file, not yet checked.
        path: of the file.

    Raises:
        PackageError: one of them is not; the level, the version that wrote it, and what to do.
    """
    manifest = members.get("package", members)
    levels = manifest.get("levels") if isinstance(manifest, dict) else None
    for level in levels if isinstance(levels, list) else []:
        if isinstance(level, dict) and (found := _removed(level)) is not None:
            what, instead = found
            wrote = members.get("created_by")
            raise PackageError(
                f"{path}: level {shown(level.get('name'))}: {what}, written by {shown(wrote)}; one that this version "
                f"has is required. Use the version that wrote it, or convert again. {instead}."
            )


def _removed(level: dict[str, Any]) -> tuple[str, str] | None:
    kind = level.get("kind")
    if isinstance(kind, str) and kind in REMOVED_KINDS:
        return f"kind {kind!r}, which was removed", REMOVED_KINDS[kind]
    return next((found for member, found in REMOVED_MEMBERS.items() if level.get(member) is not None), None)


NO_DIGEST = "0" * 64
Model = TypeVar("Model", bound=BaseModel)


def sealed(members: dict[str, Any]) -> bytes:
    """The file's bytes; the last member is `NO_DIGEST`, and is filled in."""
    blank = json.dumps(members, indent=1).encode()
    return _with_digest(blank, hashlib.sha256(blank).hexdigest(), NO_DIGEST)


def read_sealed(path: Path, model: type[Model], what_it_is: str, what_to_do: str) -> Model:
    """Read a file, check its digest, and what its members are.

    Args:
        path: of the file.
        model: its members; `format` and `format_version` are fixed, the digest is the last one.
        what_it_is: a sentence for who has no such file.
        what_to_do: about a damaged one: "convert again".

    Raises:
        PackageError: it is missing, too long, not what the model says, of another format version, damaged, or has what
            was removed.
    """
    try:
        num_bytes = check_regular_file(path)
    except CheckpointError as error:
        raise PackageError(f"{error} {what_it_is}") from error
    if num_bytes > MAX_JSON_BYTES:
        raise PackageError(
            f"{path}: {num_bytes:,} bytes; at most {MAX_JSON_BYTES:,} are read. {what_to_do.capitalize()}."
        )
    with open_file(path) as file:
        raw = file.read(num_bytes)
    try:
        members = parse_json_object(raw, str(path), unique_keys=True)
    except CheckpointError as error:
        raise PackageError(str(error)) from error
    format_name, version = (model.model_fields[key].default for key in ("format", "format_version"))
    if (members.get("format"), members.get("format_version")) != (format_name, version):
        raise PackageError(
            f"{path}: format {members.get('format')!r}, version {members.get('format_version')!r}; this program reads "
            f"{format_name!r}, version {version}. {what_to_do.capitalize()}, or use the mxconv that wrote it."
        )
    refuse_removed(members, path)
    try:
        found = model.model_validate_json(raw)
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        place = ".".join(str(part) for part in first["loc"])
        raise PackageError(
            f"{path}: {place}: {first['msg']} (found {str(first['input'])[:80]!r}). The file is damaged; {what_to_do}."
        ) from error
    digest = getattr(found, list(model.model_fields)[-1])
    if hashlib.sha256(_with_digest(raw, NO_DIGEST, digest)).hexdigest() != digest:
        raise PackageError(
            f"{path}: its SHA-256 is not the recorded {digest}; no byte of it may change. "
            f"The file is damaged or was edited; {what_to_do}."
        )
    return found


def _with_digest(raw: bytes, digest: str, old: str) -> bytes:
    """The file with the last member's digest replaced."""
    head, _, tail = raw.rpartition(old.encode())
    return head + digest.encode() + tail
