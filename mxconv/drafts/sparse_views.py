"""Views that attend to a part of the cache, by the target's 16-bit weights or by their 4-bit copy.

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
from mxconv.drafts.kind import CACHE, DraftSpec, LevelCodec, OpenedDraft, Parameter, Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.target_views import MOST_POSITIONS, SELF_DRAFT, TargetView
from mxconv.engine.attention_window import LEAST_RETRIEVING
from mxconv.engine.kv_pool import PAGE
from mxconv.errors import ModelError, PackageError
from mxconv.package.level_record import LevelRecord, RetrievalRecord, StreamingRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import LoadedLevel


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
