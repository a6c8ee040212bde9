"""Kinds that are a part of the target: without some layers, over fewer positions, or with fewer experts."""

from pathlib import Path

from mxconv.drafts.kind import DraftSpec, ModelKind, OpenedDraft, OpenTarget, Run
from mxconv.drafts.loaded_level import LoadedLevel
from mxconv.engine.decoder import Decoder
from mxconv.engine.sight import SinkWindow
from mxconv.engine.skipped import Skipped
from mxconv.package.level_record import LevelRecord, Shared


class VariantKind(ModelKind):
    """The target's own weights, and its cache unless the SPEC has `cache=own`."""

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        if spec.parameters.get("cache") == "own":
            return ["weights", "tokenizer"]
        return ["weights", "kv_cache", "tokenizer"]

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        num_layers = (target.checkpoint.config or {}).get("num_hidden_layers")
        if type(num_layers) is int:
            Skipped.at_first(self.record(spec, spec.kind), num_layers)
        return super().open(spec, target)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        """A variant of the run's target, or of the package's own where it is the first level."""
        if run.levels:
            above, whole = run.levels[0].record, run.target
        else:
            above, whole = record, run.matrices.decoder(run.own.config, run.own.sixteen_bits, "target")
        return LoadedLevel(record, variant_of(whole, above, record), run.tokenizer)


def variant_of(whole: Decoder, above: LevelRecord, record: LevelRecord) -> Decoder:
    """The variant of a decoder that a record describes.

    Args:
        whole: the run's target.
        above: the target's record. Where the target is a variant itself, the parts that it lacks are left out too, and
            its positions are attended to unless `record` names others.
        record: of the variant.

    Raises:
        ModelError: a layer that the model does not have.
    """
    at_first = (Skipped.at_first(each, whole.config.num_hidden_layers) for each in (above, record))
    skipped = [each for each in at_first if each is not None]
    left_out = Skipped(
        frozenset().union(*(each.attention for each in skipped)), frozenset().union(*(each.mlp for each in skipped))
    )
    seen = record if record.window is not None else above
    sinks = None if seen.window is None else SinkWindow(seen.sink or 0, seen.window)
    num_experts = above.experts if record.experts is None else record.experts
    return whole.variant(left_out, sinks, record.name, num_experts)
