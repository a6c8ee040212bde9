"""The levels of a package as the models see them: bytes from its manifest, sizes from its config.json files."""

from collections.abc import Sequence

from mxconv.checkpoint.manifest import LevelRecord
from mxconv.checkpoint.package import Package, inside
from mxconv.cost.architecture import Architecture
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, CostLevel
from mxconv.cost.traffic import bytes_per_forward

CONFIG = "config.json"
CODECS = {"bf16": "bf16", "f16": "fp16", "bsfp": "bsfp", "mxfp4": "mxfp4"}  # of the manifest, of the models


def package_levels(package: Package) -> list[CostLevel]:
    """Every level, the target first.

    Raises:
        CheckpointError, ModelError: a config.json is missing, or of a model that is not known.
    """
    return [_level(package, record) for record in package.manifest.levels]


def package_strategies(levels: Sequence[CostLevel]) -> dict[str, list[CostLevel]]:
    """Greedy, the target with each draft alone, and all levels together: what `mxconv bench decode` measures."""
    target, *drafts = levels
    strategies = {"greedy": [target]} | {draft.name: [target, draft] for draft in drafts}
    if len(drafts) > 1:
        strategies["hierarchy"] = [target, *drafts]
    return strategies


def _level(package: Package, record: LevelRecord) -> CostLevel:
    if record.kind in ("target", "self-draft"):
        architecture = Architecture.from_file(inside(package.root, CONFIG))
        codec = CODECS[record.codec]
        if record.kind == "self-draft" and codec == "bsfp":
            codec = "bsfp-draft"
        acceptance, source = TYPICAL_ACCEPTANCE.get(codec, (0.0, ""))
        num_bytes = bytes_per_forward(package, record)
        return CostLevel(record.name, codec, architecture, acceptance, source, num_bytes)
    acceptance, source = TYPICAL_ACCEPTANCE["small"]
    if record.kind != "model" or record.path is None:  # a table or a look-up: no pass, no weights
        return CostLevel(record.name, "bf16", None, acceptance, source)
    architecture = Architecture.from_file(inside(package.root, f"{record.path}/{CONFIG}"))
    codec = CODECS.get(record.codec, "bf16")  # a package as a draft: its bytes are known, its codec is not asked for
    return CostLevel(record.name, codec, architecture, acceptance, source, bytes_per_forward(package, record))
