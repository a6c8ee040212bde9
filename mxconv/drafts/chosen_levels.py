"""Which levels of a package take part in a run: the first is what the run decodes, the others draft for it."""

from collections.abc import Sequence
from pathlib import Path

from mxconv.drafts.kinds import is_look_up, reads_states
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.manifest import Manifest

OF_TARGET = (
    "target",
    "layer-skip",
    "streaming",
    "fewer-experts",
)  # kinds that the 4-bit copy of the target can draft for


def choose_levels(root: Path, manifest: Manifest, names: Sequence[str] | None) -> list[LevelRecord]:
    """The levels of a run, the one that it decodes first.

    Args:
        root: of the package, for messages.
        manifest: its manifest.
        names: of levels; None for all, which begin with the package's target.

    Raises:
        ModelError: no level, an unknown one, a look-up first, or a level below one that is not dearer.
    """
    known: dict[str, LevelRecord] = {}
    for record in manifest.levels:
        known.setdefault(record.name, record)
    if names is None:
        chosen = list(manifest.levels)
    elif not names or any(name not in known for name in names):
        raise ModelError(
            f"{root}: levels {', '.join(names) or 'none'}; at least one, out of {', '.join(known)}, is required."
        )
    else:
        chosen = [known[name] for name in names]
    _check_order(root, chosen)
    return chosen


def _check_order(root: Path, chosen: Sequence[LevelRecord]) -> None:
    first, *drafts = chosen
    if is_look_up(first):
        raise ModelError(
            f"{root}: level {first.name} first, a look-up, which drafts and decodes nothing by itself; a model is "
            "required. Name the level that is to be decoded before it."
        )
    if reads_states(first):
        raise ModelError(
            f"{root}: level {first.name} first, which reads another level's hidden states and decodes nothing by "
            "itself; a model is required. Name the level that is to be decoded before it."
        )
    for place, draft in enumerate(drafts, 1):
        if draft.kind == "target":
            raise ModelError(
                f"{root}: level {draft.name} below {chosen[place - 1].name}; a draft must be cheaper than what it "
                "drafts for, and no level is dearer. Name it first, or leave it out."
            )
        if draft.kind == "self-draft" and first.kind not in OF_TARGET:
            raise ModelError(
                f"{root}: level {draft.name} drafts for {first.name}; the 4-bit copy drafts for the 16-bit weights "
                "that it is made of. Name it first, or leave it out."
            )
