"""The levels of a package as the models see them: bytes from its manifest, sizes from its config.json files."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from mxconv.arch.families.table import describe_file
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import multiplied_weights
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, CostLevel
from mxconv.drafts.model import recorded_level
from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
from mxconv.drafts.readers.mtp_module import layer_config
from mxconv.drafts.readers.spire_layers import SpireConfig
from mxconv.engine.skipped import Skipped
from mxconv.engine.stored_bytes import checkpoint_bytes, mtp_bytes, package_bytes
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package, inside

CONFIG = "config.json"
CODECS = {"bf16": "bf16", "f16": "fp16", "bsfp": "bsfp", "mxfp4": "mxfp4"}  # of manifest and models
NOT_KNOWN = "nobody measured such a draft; give --acceptance or a trace"


def package_levels(package: Package) -> list[CostLevel]:
    """Every level, the target first.

    Raises:
        CheckpointError, ModelError: a config.json is missing, or of a model that is not known.
    """
    target = _own(package, package.manifest.levels[0])
    return [target, *(_draft(package, record, target) for record in package.manifest.levels[1:])]


def package_strategies(levels: Sequence[CostLevel]) -> dict[str, list[CostLevel]]:
    """Greedy, the target with each draft alone, and all levels together: what `mxconv bench decode` measures."""
    target, *drafts = levels
    strategies = {"greedy": [target]} | {draft.name: [target, draft] for draft in drafts}
    if len(drafts) > 1:
        strategies["hierarchy"] = [target, *drafts]
    return strategies


def _own(package: Package, record: LevelRecord) -> CostLevel:
    """The target, or its 4-bit level."""
    is_draft = record.kind == "self-draft"
    codec = CODECS[record.codec or "bf16"]
    codec = "bsfp-draft" if is_draft and codec == "bsfp" else codec
    architecture = ModelSizes.from_file(inside(package.root, CONFIG))
    acceptance, source = TYPICAL_ACCEPTANCE.get(codec, (0.0, ""))
    return CostLevel(record.name, codec, architecture, acceptance, source, package_bytes(package, is_draft))


def _draft(package: Package, record: LevelRecord, target: CostLevel) -> CostLevel:
    if record.kind == "self-draft":
        return _own(package, record)
    if record.kind == "model" and record.path is not None:
        return _model(inside(package.root, record.path), record)
    if record.kind == "spire" and record.path is not None:
        return _spire(inside(package.root, record.path), record)
    if record.kind == "mtp":
        return _mtp(package, record, target)
    a = target.architecture
    assert a is not None and target.num_bytes is not None
    if record.kind == "speculator" and record.path is not None:
        return _stage(inside(package.root, record.path), record, a)
    if record.kind == "streaming":
        seen = (record.sink or 0) + (record.window or 0)
        windows = tuple(seen if window is None else min(window, seen) for window in a.windows)
        return replace(target, name=record.name, architecture=a.with_windows(windows), acceptance_source=NOT_KNOWN)
    if record.kind == "fewer-experts":
        fewer = replace(a, num_experts_per_token=record.experts or 0)
        return replace(target, name=record.name, architecture=fewer, acceptance_source=NOT_KNOWN)
    skipped = Skipped.at_first(record, a.num_layers)  # of parts that change while decoding, the first ones
    if skipped is not None:
        kept = replace(
            a,
            mixers=tuple(count for layer, count in enumerate(a.mixers) if layer not in skipped.attention),
            dense_sizes=tuple(size for layer, size in enumerate(a.dense_sizes) if layer not in skipped.mlp),
            has_experts=tuple(has for layer, has in enumerate(a.has_experts) if layer not in skipped.mlp),
        )
        share = multiplied_weights(kept, inf) / multiplied_weights(a, inf)  # of what files hold: all experts
        num_bytes = round(target.num_bytes * share)
        return CostLevel(record.name, target.codec, kept, 0.0, NOT_KNOWN, num_bytes)
    return CostLevel(record.name, target.codec, None, 0.0, NOT_KNOWN)  # a look-up: no pass, no weights


def _mtp(package: Package, record: LevelRecord, target: CostLevel) -> CostLevel:
    """A layer over the whole context, and the head."""
    acceptance, source = TYPICAL_ACCEPTANCE["mtp"]
    config = describe_file(inside(package.root, CONFIG))
    assert config.mtp is not None, "of a level that was converted"
    a = ModelSizes.of(layer_config(config, config.mtp))
    codec = {None: target.codec, "mxfp4": "mxfp4", "bsfp": "bsfp-draft"}[record.codec]
    num_bytes = mtp_bytes(package, in_four_bits=record.codec is not None)
    return CostLevel(record.name, codec, a, acceptance, source, num_bytes)


def _spire(folder: Path, record: LevelRecord) -> CostLevel:
    """A few layers over sinks and a window, whatever the context."""
    config = SpireConfig.from_file(folder / CONFIG)
    a = ModelSizes.of(config.decoder)
    a = a.with_windows((config.sink + config.window,) * a.num_layers)
    acceptance, source = TYPICAL_ACCEPTANCE["spire"]
    if record.codec != "package":
        return CostLevel(record.name, CODECS[record.codec or "bf16"], a, acceptance, source, checkpoint_bytes(folder))
    with Package(folder) as inner:
        codec = "bsfp-draft" if inner.manifest.levels[0].codec == "bsfp" else "mxfp4"
        return CostLevel(record.name, codec, a, acceptance, source, package_bytes(inner, is_draft=True))


def _model(folder: Path, record: LevelRecord) -> CostLevel:
    """A draft model in a folder of its own."""
    acceptance, source = TYPICAL_ACCEPTANCE["small"]
    if record.codec == "package":
        with Package(folder) as inner:
            target = _own(inner, inner.manifest.levels[0])
            chosen = recorded_level(folder, inner.manifest, record)
            level = target if chosen.kind == "target" else _draft(inner, chosen, target)
        return replace(level, name=record.name, acceptance=acceptance, acceptance_source=source)
    architecture, num_bytes = ModelSizes.from_file(folder / CONFIG), checkpoint_bytes(folder)
    return CostLevel(record.name, CODECS[record.codec or "bf16"], architecture, acceptance, source, num_bytes)


def _stage(folder: Path, record: LevelRecord, target: ModelSizes) -> CostLevel:
    """An MLP speculator, of which every token is a pass of one stage: a model without layers."""
    acceptance, source = TYPICAL_ACCEPTANCE["speculator"]
    config = SpeculatorConfig.from_file(folder / CONFIG)
    stage = replace(
        target,
        hidden_size=config.inner_dim,
        vocab_size=config.vocab_size,
        mixers=(),
        norms=(),
        dense_sizes=(),
        has_experts=(),
        num_experts=0,
    )
    num_passes = 1 if config.tie_weights else config.n_predict
    if record.codec == "package":
        with Package(folder) as inner:
            codec, num_bytes = "mxfp4", package_bytes(inner, is_draft=True)
    else:
        codec, num_bytes = CODECS[record.codec or "bf16"], checkpoint_bytes(folder)
    return CostLevel(record.name, codec, stage, acceptance, source, num_bytes // num_passes)
