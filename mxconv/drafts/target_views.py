"""The package's own levels, and views of the target: without some of its parts or experts.

target, self-draft     the 16-bit weights, and the 4-bit copy that drafts for them; no SPEC names these
layer-skip:a3-5+m7+8   without some of its attention and MLP parts: Draft & Verify (arXiv 2309.08168)
fewer-experts:2        every token sent to so many experts, from 0 on
"""

from dataclasses import replace
from pathlib import Path

from mxconv.arch.model_sizes import ModelSizes
from mxconv.drafts.kind import CACHE, DraftSpec, ModelKind, OpenedDraft, OpenTarget, Parameter, Run
from mxconv.drafts.pass_cost import PassCost, skipped_parts
from mxconv.drafts.variant_draft import Variants
from mxconv.engine.attention_window import RetrievedPages, SinkWindow
from mxconv.engine.decoder import Decoder
from mxconv.engine.experts import check_fewer
from mxconv.engine.skipped import Skipped
from mxconv.engine.weights import ModelWeights
from mxconv.package.level_record import (
    FewerExpertsRecord,
    LayerSkipRecord,
    LevelRecord,
    Shared,
    SwiftRecord,
)
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import LoadedLevel

MOST_POSITIONS = 2**31


class Target(ModelKind):
    """The 16-bit weights."""

    name = "target"

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        decoder = run.matrices.decoder(run.own.config, run.own.sixteen_bits, record.name)
        return LoadedLevel(record, decoder, run.tokenizer, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        return PassCost.of_package(package, record)


class SelfDraft(ModelKind):
    """The 4-bit copy, which reads the target's keys and values."""

    name = "self-draft"

    def weights(self, record: LevelRecord, place: Path | None, run: Run) -> ModelWeights:
        """The weights of the level, with the screen of its output head where it has one."""
        weights = run.own.four_bits(record.name, with_target=bool(run.levels))
        if record.screen is not None and run.levels:
            weights = run.own.screened(weights, record, run.target.head)
        return weights

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        decoder = run.matrices.decoder(run.own.config, self.weights(record, place, run), record.name)
        if run.levels and any(layer.skips_attention for layer in run.target.layers):  # keys that nobody writes
            record = record.model_copy(update={"shares": [part for part in record.shares if part != "kv_cache"]})
        return LoadedLevel(record, decoder, run.tokenizer, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        cost = PassCost.of_package(package, record)
        return cost if target is None else cost.screened(package, record)


class TargetView(ModelKind):
    """The target's own weights, and its cache unless the SPEC has `cache=own`."""

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        """The parts that the level leaves out at first.

        Raises:
            ModelError: a model of `num_layers` does not have them.
        """
        return Skipped()

    def sizes(self, record: LevelRecord, whole: ModelSizes) -> ModelSizes:
        """The sizes of the level, from the target's."""
        left_out = self.left_out(record, whole.num_layers)
        return replace(
            whole,
            mixers=tuple(count for layer, count in enumerate(whole.mixers) if layer not in left_out.attention),
            dense_sizes=tuple(size for layer, size in enumerate(whole.dense_sizes) if layer not in left_out.mlp),
            has_experts=tuple(has for layer, has in enumerate(whole.has_experts) if layer not in left_out.mlp),
        )

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        if spec.parameters.get("cache") == "own":
            return ["weights", "tokenizer"]
        return ["weights", "kv_cache", "tokenizer"]

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        num_layers = (target.checkpoint.config or {}).get("num_hidden_layers")
        if type(num_layers) is int:
            self.left_out(self.record(spec, spec.kind), num_layers)
        return super().open(spec, target)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        """A view of the run's target, or of the package's own where it is the first level."""
        if run.levels:
            whole = run.target
        else:
            whole = run.matrices.decoder(run.own.config, run.own.sixteen_bits, "target")
        return LoadedLevel(record, self.of_decoder(whole, record), run.tokenizer, kind=self)

    def of_decoder(self, whole: Decoder, record: LevelRecord) -> Decoder:
        """The view of a decoder; where that is a view itself, what it lacks is left out too.

        Raises:
            ModelError: a layer that the model does not have.
        """
        own, above = self.left_out(record, whole.config.num_hidden_layers), skipped_parts(whole)
        skipped = Skipped(own.attention | above.attention, own.mlp | above.mlp)
        seen = whole.pattern
        if record.window is not None:
            sinks = record.sink, record.window
            seen = RetrievedPages(*sinks, record.pages) if record.pages else SinkWindow(*sinks)
        return whole.variant(skipped, seen, record.name, record.experts)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        target = target or PassCost.of_package(package, package.manifest.levels[0])
        assert target.sizes is not None, "a target is a model"
        whole = target.whole or target.sizes
        return replace(target, sizes=self.sizes(record, target.sizes), whole=whole, typical=None)


class LayerSkip(TargetView):
    """Its subject names the parts, as `mxconv/engine/skipped.py` reads them."""

    name = "layer-skip"
    record_type = LayerSkipRecord
    subject = "LAYERS"
    parameters = (CACHE,)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"skipped": spec.subject}

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        return Skipped.parse(record.skipped, num_layers)


class FewerExperts(TargetView):
    """Every token is sent to as many experts as its subject says."""

    name = "fewer-experts"
    record_type = FewerExpertsRecord
    subject = "NUMBER"
    parameters = (CACHE,)

    def check(self, spec: DraftSpec) -> None:
        if not (spec.subject.isdecimal() and spec.subject.isascii() and len(spec.subject) < 6):
            raise ValueError(f"{spec.subject!r} experts; a number from 0 to 99999 is required.")

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"experts": int(spec.subject)}

    def sizes(self, record: LevelRecord, whole: ModelSizes) -> ModelSizes:
        return replace(whole, num_experts_per_token=record.experts)

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        if target.config is not None:
            check_fewer(target.config, int(spec.subject), f"--draft {spec.kind}:{spec.subject}")
        return super().open(spec, target)


class EarlyExit(TargetView):
    """The first layers, as many as pay."""

    name = "early-exit"

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        return Skipped.exit_after(num_layers // 2, num_layers)

    def varied(self, loaded: LoadedLevel, target: Decoder) -> Variants:
        count = target.config.num_hidden_layers
        exits = [Skipped.exit_after(kept, count) for kept in range(1, max(count, 2))]
        return Variants(loaded.record, target, exits)


class Swift(TargetView):
    """The target without parts that a search chooses, at most a share of all."""

    name = "swift"
    record_type = SwiftRecord
    parameters = (Parameter("skip", is_whole=False, default=0.45),)  # of all parts, as in SWIFT's paper

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        return Skipped.spread(num_layers, record.skip)

    def varied(self, loaded: LoadedLevel, target: Decoder) -> Variants:
        first = self.left_out(loaded.record, target.config.num_hidden_layers)
        return Variants(loaded.record, target, [first], len(first))


TARGET, SELF_DRAFT = Target(), SelfDraft()
LAYER_SKIP, FEWER_EXPERTS = LayerSkip(), FewerExperts()
EARLY_EXIT, SWIFT = EarlyExit(), Swift()
