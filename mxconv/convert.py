"""From a 16-bit checkpoint to a package: open, plan, survey, lay out, encode, describe, commit.

    with open_checkpoint("model") as checkpoint:
        conversion = convert(checkpoint, Path("package"), QuantizeOptions(codec="bsfp"))

Weights stream through in slices of rows, so memory stays flat. Everything is written beside the target and renamed at
the end; a conversion that was killed goes on where it stopped. formats/package.md says what comes out.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv import __version__
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.manifest import (
    FileRecord,
    LevelRecord,
    Manifest,
    OptionsRecord,
    SegmentRecord,
    SourceRecord,
    TensorRecord,
    TokenizerRecord,
)
from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.stored import StoredArray
from mxconv.conversion.drafts import (
    DEFAULT_BSFP_CONFIDENCE,
    DEFAULT_CONFIDENCE,
    DEFAULT_NUM_DRAFT_TOKENS,
    DraftModel,
    open_draft,
    parse_draft,
)
from mxconv.conversion.encode import EncodedTensor, encode_tensor
from mxconv.conversion.layout import Layout, plan_layout, quantized_arrays
from mxconv.conversion.names import check_names, draft_folder, unique_names
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import check_any_quantized, plan_tensors
from mxconv.conversion.staging import Staging, check_target, fingerprint, recover_target
from mxconv.conversion.survey import Survey, survey_tensor
from mxconv.errors import CheckpointError, PackageError
from mxconv.progress import Progress, silent

Result = TypeVar("Result")


@dataclass(frozen=True)
class Preparation:
    """A conversion before its first byte is written: what `--dry-run` prints."""

    checkpoint: Checkpoint
    options: QuantizeOptions
    record: OptionsRecord
    source_files: list[FileRecord]
    surveys: list[Survey]
    layout: Layout
    drafts: list[DraftModel]
    stores_target: bool  # in shards of its own, because the source's files cannot be linked

    @property
    def num_bytes_source(self) -> int:
        return sum(survey.plan.tensor.num_bytes for survey in self.surveys)

    @property
    def quantized(self) -> list[Survey]:
        return [survey for survey in self.surveys if survey.plan.codec != "keep"]

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over weights, of the quantized tensors: scales, escapes and padding counted."""
        num_bytes = sum(array.num_bytes for survey in self.quantized for array in quantized_arrays(survey))
        return 8 * num_bytes / sum(survey.plan.tensor.num_elements for survey in self.quantized)

    @property
    def links_target(self) -> bool:
        """Whether the source's own weight files become part of the package."""
        return self.options.codec == "mxfp4" and self.record.target == "include" and not self.stores_target

    @property
    def is_lossless(self) -> bool:
        """Whether the 16-bit source can be rebuilt from the package alone."""
        if self.options.codec == "mxfp4":
            return self.record.target == "include"
        return all(survey.rescale_factor == 1.0 for survey in self.surveys)


def convert(checkpoint: Checkpoint, target: Path, options: QuantizeOptions, progress: Progress = silent) -> Manifest:
    """Convert a checkpoint and write the package.

    Args:
        checkpoint: open.
        target: the package's folder; must not exist, unless it is a package and `options.force` is set.
        options: what to do.
        progress: told about every slice.

    Raises:
        MxconvError: the source, the options or the target do not allow it. Nothing half-written is left at `target`.
    """
    recover_target(target)
    check_target(target, options.force)
    _check_apart(checkpoint, target)
    preparation = prepare(checkpoint, options, progress)
    staging = Staging(target, _fingerprint(preparation))
    try:
        encoded = _encode(preparation, staging, progress)
        _place_companions(preparation, staging)
        manifest = _describe(preparation, encoded, staging, progress)
        check_target(target, options.force)
        staging.commit(manifest.to_bytes(), options.force)
    finally:
        staging.close()
    return manifest


def prepare(checkpoint: Checkpoint, options: QuantizeOptions, progress: Progress = silent) -> Preparation:
    """Everything up to the first written byte: hash the source, plan, survey, lay out."""
    record = options.record(is_local=checkpoint.commit is None)
    plans = plan_tensors(checkpoint, options)
    drafts = unique_names([open_draft(parse_draft(text), checkpoint) for text in options.drafts], options.codec)
    must_store = checkpoint.is_legacy or any(plan.is_cast for plan in plans)
    if must_store and record.target == "reference":
        raise CheckpointError(
            f"{checkpoint.id}: {'a .bin checkpoint' if checkpoint.is_legacy else 'F32 weights'}; only 16-bit "
            "safetensors can be referenced. Use --target include."
        )
    source_files = _hash_source(checkpoint, progress)
    total = sum(plan.num_bytes for plan in plans if plan.codec != "keep")
    advance = _Counter("survey", total, progress)

    def survey(index: int) -> Survey:
        result = survey_tensor(plans[index], options)
        advance(plans[index].num_bytes if plans[index].codec != "keep" else 0)
        return result

    surveys = _in_threads(survey, len(plans), options.num_threads)
    check_any_quantized(checkpoint, [survey.plan for survey in surveys])
    stores_target = options.codec == "mxfp4" and must_store
    layout = plan_layout(_groups(surveys, options, stores_target), options.max_shard_bytes)
    preparation = Preparation(checkpoint, options, record, source_files, surveys, layout, drafts, stores_target)
    check_names(checkpoint, layout, drafts, preparation.links_target)
    return preparation


def _check_apart(checkpoint: Checkpoint, target: Path) -> None:
    """Refuse to replace the folder that is being read."""
    folder = target.resolve()
    inside = [path for path in checkpoint.weight_files if path.resolve().is_relative_to(folder)]
    if inside:
        raise PackageError(
            f"{target}: holds {inside[0].name}, which is being converted; source and package must be apart. "
            "Choose another output."
        )


def _hash_source(checkpoint: Checkpoint, progress: Progress) -> list[FileRecord]:
    """SHA-256 of the weight files and the index."""
    paths = [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]
    sizes = [path.stat().st_size for path in paths]
    advance = _Counter("hash source", sum(sizes), progress)
    return [
        FileRecord(path=_relative(path, checkpoint), num_bytes=num_bytes, sha256=sha256_file(path, advance))
        for path, num_bytes in zip(paths, sizes, strict=True)
    ]


def _relative(path: Path, checkpoint: Checkpoint) -> str:
    return path.relative_to(checkpoint.root).as_posix()


def _groups(
    surveys: list[Survey], options: QuantizeOptions, stores_target: bool
) -> dict[str, dict[str, tuple[StoredArray, ...]]]:
    """Which arrays go into which files: BSFP planes beside what is kept; MXFP4 codes apart from their target."""
    whole: dict[str, tuple[StoredArray, ...]] = {
        s.plan.name: (StoredArray(s.plan.name, s.plan.dtype, s.plan.tensor.shape),) for s in surveys
    }
    quantized = {s.plan.name: quantized_arrays(s) for s in surveys if s.plan.codec != "keep"}
    if options.codec == "bsfp":
        return {"bsfp": {name: quantized.get(name, arrays) for name, arrays in whole.items()}}
    return {"mxfp4": quantized} | ({"model": whole} if stores_target else {})


def _fingerprint(preparation: Preparation) -> str:
    return fingerprint(
        __version__,
        preparation.record.model_dump(),
        preparation.options.max_shard_bytes,
        [record.model_dump() for record in preparation.source_files],
        list(preparation.options.drafts),
    )


def _encode(preparation: Preparation, staging: Staging, progress: Progress) -> dict[str, EncodedTensor]:
    """Encode every tensor that an earlier run did not finish, tensors side by side."""
    layout, options = preparation.layout, preparation.options
    encoded = staging.prepare(layout)
    places = layout.places
    todo = [survey for survey in preparation.surveys if survey.plan.name not in encoded]
    total = sum(survey.plan.num_bytes for survey in preparation.surveys)
    advance = _Counter("encode", total, progress)
    advance(total - sum(survey.plan.num_bytes for survey in todo))

    def write(name: str, offset: int, piece: NDArray[np.generic]) -> None:
        shard, begin = places[name]
        staging.write(shard, begin + offset, piece)

    def encode(index: int) -> EncodedTensor:
        survey = todo[index]
        copy = preparation.stores_target or (options.codec == "bsfp" and survey.plan.codec == "keep")
        result = encode_tensor(survey, options.scale_rule, write, copy=copy, progress=advance)
        staging.finish_tensor(result)
        return result

    finished = _in_threads(encode, len(todo), options.num_threads)
    return encoded | {result.name: result for result in finished}


def _place_companions(preparation: Preparation, staging: Staging) -> None:
    """Configuration, tokenizer and licence unchanged; the target's own files where they are included; drafts."""
    checkpoint = preparation.checkpoint
    for path in checkpoint.companion_files:
        staging.place_file(_relative(path, checkpoint), path, link=False)
    if preparation.links_target:
        for record in preparation.source_files:
            staging.place_file(record.path, checkpoint.root / record.path, link=True)
    for name, content in preparation.layout.indexes.items():
        staging.write_file(name, content)
    for number, draft in enumerate(preparation.drafts, 1):
        draft.place(staging, draft_folder(number, draft))


def _describe(
    preparation: Preparation, encoded: dict[str, EncodedTensor], staging: Staging, progress: Progress
) -> Manifest:
    """The manifest, with the hash of every file that lies in the staging folder."""
    checkpoint = preparation.checkpoint
    known = {r.path: r for r in preparation.source_files} if preparation.links_target else {}
    files = _hash_package(staging, known, progress)
    by_path = {record.path: record for record in files}
    tokenizer = by_path.get("tokenizer.json")
    vocab_size = (checkpoint.config or {}).get("vocab_size")
    return Manifest(
        source=SourceRecord(
            id=_source_id(preparation),
            commit=checkpoint.commit,
            files=preparation.source_files,
            dtype=_main_dtype(preparation),
            cast=any(survey.plan.is_cast for survey in preparation.surveys),
        ),
        tokenizer=TokenizerRecord(
            sha256=tokenizer.sha256,
            vocab_size=vocab_size if type(vocab_size) is int and 0 <= vocab_size < 2**63 else 0,
        )
        if tokenizer
        else None,
        options=preparation.record,
        lossless=preparation.is_lossless,
        bits_per_weight=preparation.bits_per_weight,
        levels=_levels(preparation),
        tensors=[_tensor_record(survey, encoded[survey.plan.name]) for survey in preparation.surveys],
        files=files,
    )


def _source_id(preparation: Preparation) -> str:
    """As given; but a local folder that stays the target's home must be found from anywhere."""
    checkpoint = preparation.checkpoint
    is_referenced_path = preparation.record.target == "reference" and checkpoint.commit is None
    return str(Path(checkpoint.id).absolute()) if is_referenced_path else checkpoint.id


def _hash_package(staging: Staging, known: dict[str, FileRecord], progress: Progress) -> list[FileRecord]:
    paths = sorted(path for path in staging.path.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = {path.relative_to(staging.path).as_posix(): path for path in paths}
    names.pop("mxconv.json", None)  # of a run that was killed just before the rename
    advance = _Counter("hash package", sum(path.stat().st_size for path in names.values()), progress)
    records = []
    for name, path in names.items():
        if name in known:
            advance(known[name].num_bytes)
            records.append(known[name])
        else:
            digest = sha256_file(path, advance)
            records.append(FileRecord(path=name, num_bytes=path.stat().st_size, sha256=digest))
    return records


def _levels(preparation: Preparation) -> list[LevelRecord]:
    """The hierarchy: the target, the codec's own draft, then the models given with --draft."""
    options, dtype = preparation.options, _main_dtype(preparation)
    own = [shard.file_name for shard in preparation.layout.shards if shard.file_name.startswith(options.codec)]
    stored = [shard.file_name for shard in preparation.layout.shards if shard.file_name not in own]
    sources = [_relative(path, preparation.checkpoint) for path in preparation.checkpoint.weight_files]
    linked = sources if preparation.links_target else []
    is_bsfp = options.codec == "bsfp"
    target = LevelRecord(
        name="target",
        kind="target",
        codec="bsfp" if is_bsfp else _codec_name(dtype),
        location="source" if preparation.record.target == "reference" else "package",
        files=own if is_bsfp else stored + linked,
        shares=[],
    )
    draft = LevelRecord(
        name=options.codec,
        kind="self-draft",
        codec=options.codec,
        location="package",
        files=own,
        shares=["weights", "kv_cache", "tokenizer"],
        num_draft_tokens=DEFAULT_NUM_DRAFT_TOKENS,
        confidence=DEFAULT_BSFP_CONFIDENCE if is_bsfp else DEFAULT_CONFIDENCE,
    )
    models = [draft.level(draft_folder(number, draft)) for number, draft in enumerate(preparation.drafts, 1)]
    return [target, draft, *models]


def _main_dtype(preparation: Preparation) -> Literal["BF16", "F16"]:
    """The 16-bit format that most quantized weights are in."""
    weights = {"BF16": 0, "F16": 0}
    for survey in preparation.quantized:
        weights[survey.plan.dtype] += survey.plan.tensor.num_elements
    return "BF16" if weights["BF16"] >= weights["F16"] else "F16"


def _codec_name(dtype: str) -> Literal["bf16", "f16"]:
    return "bf16" if dtype == "BF16" else "f16"


def _tensor_record(survey: Survey, encoded: EncodedTensor) -> TensorRecord:
    plan = survey.plan
    segments = None
    if survey.table is not None:
        segments = SegmentRecord.of(survey.table, survey.num_escapes, survey.rescale_factor)
    return TensorRecord(
        name=plan.name,
        dtype=plan.dtype,
        shape=list(plan.tensor.shape),
        codec=plan.codec,
        reason=plan.reason,
        sha256=encoded.sha256,
        segments=segments,
    )


class _Counter:
    """Adds up bytes from several threads and reports the sum."""

    def __init__(self, stage: str, total: int, progress: Progress) -> None:
        self.stage, self.total, self.progress = stage, total, progress
        self.done = 0
        self._lock = Lock()

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self.done += num_bytes
            self.progress(self.stage, self.done, self.total)


def _in_threads(work: Callable[[int], Result], count: int, num_threads: int) -> list[Result]:
    """Call work(0), ..., work(count - 1); the first error stops what has not begun."""
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(work, index) for index in range(count)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
