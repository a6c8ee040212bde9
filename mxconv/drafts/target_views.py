"""The package's own levels, and views of the target.

target, self-draft     the 16-bit weights, and the 4-bit copy that drafts for them; no SPEC names these
fewer-experts:2        every token sent to so many experts, from 0 on
streaming:sink=4,window=252
                       the first and the last positions alone: StreamingLLM (arXiv 2309.17453); as a draft MagicDec
                       (arXiv 2408.11049)
retrieval:pages=16     beside them the pages of the cache whose keys may score highest: TriForce (arXiv 2404.11912),
                       chosen anew for each token, as in Quest (arXiv 2406.10774)

`bits=4` or `bits=16` says whose weights. Attention to everything stays with the target, which reads the same cache.
"""

from dataclasses import replace
from pathlib import Path

from mxconv.arch.model_sizes import ModelSizes
from mxconv.drafts.kind import CACHE, DraftKind, DraftSpec, LevelCodec, OpenedDraft, OpenTarget, Parameter, Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.engine.attention_window import LEAST_RETRIEVING, RetrievedPages, SinkWindow
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.mlp import check_fewer
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError, PackageError
from mxconv.package.level_record import (
    FewerExpertsRecord,
    LevelRecord,
    RetrievalRecord,
    Shared,
    StreamingRecord,
)
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import LoadedLevel

MOST_POSITIONS = 2**31


class Target(DraftKind):
    """The 16-bit weights."""

    name = "target"

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        decoder = run.matrices.decoder(run.own.config, run.own.sixteen_bits, record.name)
        return LoadedLevel(record, decoder, run.tokenizer, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        return PassCost.of_package(package, record)


class SelfDraft(DraftKind):
    """The 4-bit copy, which reads the target's keys and values: its record says so (`LevelRecord.shares`)."""

    name = "self-draft"

    def weights(self, record: LevelRecord, place: Path | None, run: Run) -> ModelWeights:
        """The weights of the level; where it drafts, its output head reads few rows, those of the target's.

        Not from files, where a memory limit leaves them: each token would read others.
        """
        weights = run.own.four_bits(record.name, with_target=bool(run.levels))
        if run.matrices.made is not None or not (run.levels or run.is_draft):
            return weights
        return run.own.screened(weights, record, run.target.head if run.levels else run.own.head)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        decoder = run.matrices.decoder(run.own.config, self.weights(record, place, run), record.name)
        return LoadedLevel(record, decoder, run.tokenizer, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        cost = PassCost.of_package(package, record)
        return cost if target is None else cost.screened(package, record)


class TargetView(DraftKind):
    """The target's own weights, and its cache unless the SPEC has `cache=own`."""

    def sizes(self, record: LevelRecord, whole: ModelSizes) -> ModelSizes:
        """The sizes of the level, from the target's."""
        raise NotImplementedError

    def shares(self, spec: DraftSpec, same_tokenizer: bool) -> list[Shared]:
        if spec.parameters.get("cache") == "own":
            return ["weights", "tokenizer"]
        return ["weights", "kv_cache", "tokenizer"]

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        """A view of the run's target, or of the package's own where it is the first level."""
        if run.levels:
            whole = run.target
        else:
            whole = run.matrices.decoder(run.own.config, run.own.sixteen_bits, "target")
        return LoadedLevel(record, self.of_decoder(whole, record), run.tokenizer, kind=self)

    def of_decoder(self, whole: Decoder, record: LevelRecord) -> Decoder:
        """The view of a decoder; where that is a view itself, what it lacks is left out too."""
        seen = whole.pattern
        if record.window is not None:
            sinks = record.sink, record.window
            seen = RetrievedPages(*sinks, record.pages) if record.pages else SinkWindow(*sinks)
        return whole.variant(seen, record.name, record.experts)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        target = target or PassCost.of_package(package, package.manifest.levels[0])
        assert target.sizes is not None, "a target is a model"
        whole = target.whole or target.sizes
        return replace(target, sizes=self.sizes(record, target.sizes), whole=whole, typical=None)


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


TARGET, SELF_DRAFT = Target(), SelfDraft()
FEWER_EXPERTS = FewerExperts()


class Streaming(TargetView):
    """Its passes read a constant number of keys and values."""

    name = "streaming"
    record_type: type[LevelRecord] = StreamingRecord
    parameters: tuple[Parameter, ...] = (
        Parameter("sink", 0, MOST_POSITIONS, default=4),
        Parameter("window", 1, MOST_POSITIONS, default=252),
        Parameter("bits", choices=(4, 16), default=16),
        CACHE,
    )

    def codec_in(self, draft: OpenedDraft, own_codec: LevelCodec) -> LevelCodec | None:
        default = next(each.default for each in self.parameters if each.name == "bits")
        return own_codec if draft.spec.parameters.get("bits", default) == 4 else None

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        draft = OpenedDraft(spec, spec.kind)
        return replace(draft, codec=self.codec_in(draft, run.package.manifest.options.codec))

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        if record.codec is None:
            return super().load(record, place, run)
        copies = [level for level in run.levels if level.record.kind == "self-draft"]
        if run.levels and run.target.config is not run.own.config:
            raise ModelError(
                f"level {record.name}: the 4-bit copy of {run.package.root} below {run.levels[0].name}; the weights "
                "that it is made of are required above it. Add bits=16 for a view of that model."
            )
        copy = copies[0] if copies else SELF_DRAFT.load(_copy_of(run.package), None, run)
        assert copy.decoder is not None, "a model"
        if "kv_cache" not in copy.record.shares:
            record = record.model_copy(update={"shares": [part for part in record.shares if part != "kv_cache"]})
        return LoadedLevel(record, self.of_decoder(copy.decoder, record), run.tokenizer, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        if record.codec is None:
            return super().cost(record, place, package, target)
        copy = SELF_DRAFT.cost(_copy_of(package), None, package, target)
        assert copy.sizes is not None, "a model"
        return replace(copy, sizes=self.sizes(record, copy.sizes), typical=None)

    def sizes(self, record: LevelRecord, whole: ModelSizes) -> ModelSizes:
        seen = record.sink + record.window + PAGE * (record.pages or 0)
        return whole.with_windows([seen if window is None else min(window, seen) for window in whole.windows])


class Retrieval(Streaming):
    """Beside sinks and window it attends to pages that each token chooses."""

    name = "retrieval"
    record_type = RetrievalRecord
    parameters = (
        Parameter("pages", 1, MOST_POSITIONS // PAGE, default=16),
        Parameter("sink", 0, MOST_POSITIONS, default=4),
        Parameter("window", LEAST_RETRIEVING, MOST_POSITIONS, default=256),
        Parameter("bits", choices=(4, 16), default=4),
        CACHE,
    )


def _copy_of(package: Package) -> LevelRecord:
    """The 4-bit level of a package.

    Raises:
        PackageError: it has none.
    """
    for record in package.manifest.levels:
        if record.kind == "self-draft":
            return record
    raise PackageError(f"{package.root}: no 4-bit level; a draft of 4 bits needs one. Add bits=16.")


STREAMING, RETRIEVAL = Streaming(), Retrieval()
