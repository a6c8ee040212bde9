"""The manifest of a finished conversion."""

from collections.abc import Sequence
from pathlib import Path

from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.preparation import Preparation, relative_name
from mxconv.conversion.survey import Survey
from mxconv.package.growing_shard import EncodedTensor
from mxconv.package.level_record import (
    DEFAULT_BSFP_CONFIDENCE,
    DEFAULT_CONFIDENCE,
    DEFAULT_NUM_DRAFT_TOKENS,
    SCREEN_FILE,
    LevelRecord,
    PlainRecord,
)
from mxconv.package.manifest import (
    FileRecord,
    Manifest,
    SourceRecord,
    TokenizerRecord,
)
from mxconv.package.tensor_record import CarriedRecord, ExpertsRecord, ScaledRecord, SegmentRecord, TensorRecord


def describe(
    preparation: Preparation,
    source_files: list[FileRecord],
    encoded: dict[str, EncodedTensor],
    files: list[FileRecord],
) -> Manifest:
    """The manifest, with the hash of every file of the package."""
    checkpoint = preparation.checkpoint
    by_path = {record.path: record for record in files}
    tokenizer = by_path.get("tokenizer.json")
    vocab_size = (checkpoint.config or {}).get("vocab_size")
    return Manifest(
        source=SourceRecord(
            id=_source_id(preparation),
            commit=checkpoint.commit,
            files=source_files,
            dtype=preparation.main_dtype,
            cast=any(survey.plan.is_cast for survey in preparation.surveys),
        ),
        tokenizer=TokenizerRecord(
            sha256=tokenizer.sha256,
            vocab_size=vocab_size if type(vocab_size) is int and 0 <= vocab_size < 2**63 else 0,
        )
        if tokenizer
        else None,
        options=preparation.record,
        draft_weights=preparation.draft_file.record if preparation.draft_file else None,
        lossless=preparation.is_lossless,
        bits_per_weight=preparation.bits_per_weight,
        levels=levels_of(preparation),
        tensors=[_tensor_record(survey, encoded[survey.plan.name]) for survey in preparation.surveys],
        files=files,
    )


def source_records(checkpoint: Checkpoint, sha256s: Sequence[str]) -> list[FileRecord]:
    """The weight files and the index of a source, with the hashes of `hashed_files`."""
    sizes, files = checkpoint.file_sizes, checkpoint.hashed_files
    return [
        FileRecord(path=relative_name(path, checkpoint), num_bytes=sizes[path], sha256=sha256)
        for path, sha256 in zip(files, sha256s, strict=True)
    ]


def _source_id(preparation: Preparation) -> str:
    """As given; but a local folder that stays the target's home must be found from anywhere."""
    checkpoint = preparation.checkpoint
    is_path = checkpoint.commit is None and not checkpoint.is_on_store
    is_referenced_path = preparation.record.target == "reference" and is_path
    return str(Path(checkpoint.id).absolute()) if is_referenced_path else checkpoint.id


def levels_of(preparation: Preparation) -> list[LevelRecord]:
    """The hierarchy: the target, the codec's own draft, then the models given with --draft."""
    options, dtype = preparation.options, preparation.main_dtype
    own = [shard.file_name for shard in preparation.layout.shards if shard.file_name.startswith(options.codec)]
    stored = [shard.file_name for shard in preparation.layout.shards if shard.file_name not in own]
    sources = [relative_name(path, preparation.checkpoint) for path in preparation.checkpoint.weight_files]
    linked = sources if preparation.links_target else []
    is_bsfp = options.codec == "bsfp"
    screen = None if preparation.screen is None else preparation.screen.record
    target = PlainRecord(
        name="target",
        kind="target",
        codec="bsfp" if is_bsfp else "bf16" if dtype == "BF16" else "f16",
        location="source" if preparation.record.target == "reference" else "package",
        files=own if is_bsfp else stored + linked,
        shares=[],
    )
    draft = PlainRecord(
        name=options.codec,
        kind="self-draft",
        codec=options.codec,
        location="package",
        files=own + ([] if screen is None else [SCREEN_FILE]),
        shares=["weights", "kv_cache", "tokenizer"],
        num_draft_tokens=DEFAULT_NUM_DRAFT_TOKENS,
        confidence=DEFAULT_BSFP_CONFIDENCE if is_bsfp else DEFAULT_CONFIDENCE,
        screen=screen,
    )
    return [target, draft, *(preparation.drafts.levels if preparation.drafts else [])]


def _tensor_record(survey: Survey, encoded: EncodedTensor) -> TensorRecord:
    plan, sha256 = survey.plan, encoded.sha256
    segments = [SegmentRecord.of(s.table, s.num_escapes, s.rescale_factor) for s in survey.segments]
    has_one = len(segments) == 1
    experts = None
    if plan.experts is not None:
        experts = ExpertsRecord(axes=plan.experts.axes, segments=[] if has_one else segments)
    return TensorRecord(
        name=plan.name,
        dtype=plan.dtype,
        shape=list(plan.tensor.shape),
        codec=plan.codec,
        reason=plan.reason,
        sha256=sha256,
        rounded_from=plan.tensor.source_type if plan.is_cast else None,
        segments=segments[0] if has_one else None,
        experts=experts,
        carried=None if plan.carried is None else CarriedRecord(of=plan.carried.of, part=plan.carried.part),
        scaled=None if plan.fp8 is None else ScaledRecord(by=plan.fp8.scales.name, block=list(plan.fp8.block)),
    )
