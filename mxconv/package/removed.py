"""What earlier versions wrote and this one has no more, with what to do instead: a line each.

Manifests, and the manifests in recipes, are checked before they are read, `--draft` when its kind is unknown. A feature
that leaves adds its line here, and its message is tested with the others in `tests/package/test_manifest.py`.
"""

from pathlib import Path
from typing import Any

from mxconv.checkpoint.safetensors_header import shown
from mxconv.errors import PackageError

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
