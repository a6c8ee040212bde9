"""The package's own levels: its 16-bit target, and the 4-bit copy that drafts for it. No SPEC asks for these."""

from pathlib import Path

from mxconv.drafts.kind import ModelKind, Run
from mxconv.drafts.loaded_level import LoadedLevel
from mxconv.package.level_record import LevelRecord


class Target(ModelKind):
    """The 16-bit weights."""

    name = "target"

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        decoder = run.matrices.decoder(run.own.config, run.own.sixteen_bits, record.name)
        return LoadedLevel(record, decoder, run.tokenizer)


class SelfDraft(ModelKind):
    """The 4-bit copy, which reads the target's keys and values."""

    name = "self-draft"

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        weights = run.own.four_bits(record.name, with_target=bool(run.levels))
        decoder = run.matrices.decoder(run.own.config, weights, record.name)
        return LoadedLevel(_with_a_cache(record, run), decoder, run.tokenizer)


def _with_a_cache(record: LevelRecord, run: Run) -> LevelRecord:
    """The record, with a cache of its own where the run's target writes no keys and values of some layers."""
    if not run.levels or not any(layer.skips_attention for layer in run.target.layers):
        return record
    return record.model_copy(update={"shares": [part for part in record.shares if part != "kv_cache"]})


TARGET, SELF_DRAFT = Target(), SelfDraft()
