"""Which levels of a package take part in a run: the first is what the run decodes, the others draft for it."""

from collections.abc import Sequence
from pathlib import Path

from mxconv.checkpoint.json_file import read_json_object
from mxconv.drafts.draft_spec import LOOK_UPS, READERS
from mxconv.drafts.readers.kinds import kind_of
from mxconv.errors import ModelError
from mxconv.package.manifest import LevelRecord, Manifest

OF_MODEL = ("target", "self-draft", "layer-skip", "streaming", "fewer-experts")  # kinds with its weights, none searched
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


def draft_level(root: Path, manifest: Manifest, name: str | None = None) -> LevelRecord:
    """The level of a package which drafts where the package is the draft of another model.

    Args:
        root: of the package, for messages.
        manifest: its manifest.
        name: of the level; None for its cheapest self-draft, the 4-bit copy, or its target where it has none.

    Raises:
        ModelError: there is no such level, one that is no part of the package's own model, or no model at all.
    """
    path = root / "config.json"
    reader = kind_of(read_json_object(path, unique_keys=False)) if path.is_file() else None
    if reader is not None:
        raise ModelError(
            f"{root}: a draft of the kind {reader}, which reads its target's hidden states; a package of a model is "
            f"required. Use --draft {reader}:{root}."
        )
    if name is None:
        copies = [record for record in manifest.levels if record.kind == "self-draft"]
        return copies[-1] if copies else manifest.levels[0]
    record = next((record for record in manifest.levels if record.name == name), None)
    if record is None:
        raise ModelError(
            f"{root}: level {name!r} is not in this package; one of "
            f"{', '.join(each.name for each in manifest.levels)} is required."
        )
    if record.kind not in OF_MODEL:
        place = f" --draft checkpoint:{root}/{record.path} takes that model." if record.kind == "model" else ""
        names = ", ".join(each.name for each in manifest.levels if each.kind in OF_MODEL)
        raise ModelError(
            f"{root}: level {name} is of the kind {record.kind}; a level with the weights of the package's own model, "
            f"{names}, is required.{place}"
        )
    return record


def recorded_level(root: Path, manifest: Manifest, record: LevelRecord) -> LevelRecord:
    """The level of a package that a level of another package names; its target where it names none.

    Raises:
        ModelError: as `draft_level`.
    """
    return manifest.levels[0] if record.level is None else draft_level(root, manifest, record.level)


def _check_order(root: Path, chosen: Sequence[LevelRecord]) -> None:
    first, *drafts = chosen
    if first.kind in LOOK_UPS:
        raise ModelError(
            f"{root}: level {first.name} first, a look-up, which drafts and decodes nothing by itself; a model is "
            "required. Name the level that is to be decoded before it."
        )
    if first.kind in READERS:
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
