"""From a 16-bit checkpoint to a package: open, plan, survey, lay out, encode, describe, commit.

    with open_checkpoint("model") as checkpoint:
        conversion = convert(checkpoint, Path("package"), QuantizeOptions(codec="bsfp"))

Weights stream through in slices of rows, so memory stays flat; files are hashed while tensors are encoded. Everything
is written beside the target and renamed at the end (on an object store the manifest comes last), and a conversion that
was killed goes on where it stopped.
formats/package.md says what comes out.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from mxconv import __version__
from mxconv.checkpoint.object_store import Store
from mxconv.checkpoint.regular_file import check_regular_file
from mxconv.checkpoint.source import Checkpoint, hash_file
from mxconv.codecs.mxfp4 import NonFiniteError
from mxconv.conversion.describe import describe, source_records
from mxconv.conversion.encode import EncodePiece, EncodeTensors, hash_tensor
from mxconv.conversion.options import SCREEN_TOKENS, QuantizeOptions
from mxconv.conversion.preparation import Preparation, prepare
from mxconv.errors import DifferentPackageError
from mxconv.package.growing_shard import EncodedTensor
from mxconv.package.journal import fingerprint
from mxconv.package.manifest import Manifest
from mxconv.package.staging import Staging, Target, check_apart, check_target, open_staging
from mxconv.progress import Progress, silent
from mxconv.system.disk import recover
from mxconv.workers import ByteCounter, Executor, Workers, beside, result_of, unless_failed

if TYPE_CHECKING:
    from mxconv.conversion.recipes import RecipeCheck


def convert(
    checkpoint: Checkpoint,
    target: Target,
    options: QuantizeOptions,
    progress: Progress = silent,
    executor: Callable[[], Executor] | None = None,
    recipe: "RecipeCheck | None" = None,
) -> Manifest:
    """Convert a checkpoint and write the package.

    Args:
        checkpoint: open.
        target: the package's folder, here or on a store; must not exist, unless it is a package in a folder here and
            `options.force` is set.
        options: what to do.
        progress: told about every slice.
        executor: makes who does the work; threads if None, as many as the options say.
        recipe: of the package that must come out, to the byte; the options are its own.

    Raises:
        MxconvError: the source, the options, the target or the recipe do not allow it. Nothing half-written is left at
            `target`.
    """
    if isinstance(target, Path):
        recover(target)
    check_target(target, options.force)
    check_apart(checkpoint, target)
    checkpoint.show_downloads(progress)
    if options.calibrate or options.fits_screen:
        return _convert_calibrated(checkpoint, target, options, progress, executor)
    workers = executor or (lambda: Workers(options.num_threads))
    if options.on_nonfinite == "error" and options.draft_weights is None:  # given codes find no such weight
        try:
            return _convert(checkpoint, target, options, progress, workers(), recipe, assume_finite=True)
        except NonFiniteError:  # the survey finds the first one and says it well
            pass
    return _convert(checkpoint, target, options, progress, workers(), recipe, assume_finite=False)


def _convert_calibrated(
    checkpoint: Checkpoint,
    target: Target,
    options: QuantizeOptions,
    progress: Progress,
    executor: Callable[[], Executor] | None,
) -> Manifest:
    """Convert to a package beside the target, whose draft is cast; by it make better codes, or a head screen alone;
    convert with these."""
    from mxconv.calibrate import calibrate  # late: every kind of draft, and the decoders
    from mxconv.conversion.calibration_texts import OWN_PROMPTS
    from mxconv.conversion.fit_screen import screen_cast

    files = [Path(name) for name in options.calibrate] or [OWN_PROMPTS]
    for path in files:
        check_regular_file(path)
    parent = None if isinstance(target, Store) else target.absolute().parent
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".mxconv-calibration-", dir=parent) as scratch:
        cast, draft_file = Path(scratch, "cast"), Path(scratch, "draft.safetensors")
        # to weights, so that nothing is copied
        can_refer = checkpoint.container == "safetensors" and options.dtype is None and options.codec == "mxfp4"
        given = replace(options, calibrate=(), fits_screen=False, draft_weights=str(draft_file))
        if options.calibrate:  # raises or lowers these
            given = replace(given, group_scales="least-squares")
        place: Literal["include", "reference"] = "reference" if can_refer else "include"
        plain = replace(given, draft_weights=None, drafts=(), force=False, target=place)
        convert(checkpoint, cast, plain, progress, executor)
        tokens, threads = options.calibration_tokens, options.num_threads
        if options.calibrate:
            calibrate(cast, files, draft_file, tokens, threads, progress, with_screen=options.head_screen)
        else:
            screen_cast(cast, files, draft_file, min(tokens, SCREEN_TOKENS), threads, progress)
        return convert(checkpoint, target, given, progress, executor)


def _convert(
    checkpoint: Checkpoint,
    target: Target,
    options: QuantizeOptions,
    progress: Progress,
    workers: Executor,
    recipe: "RecipeCheck | None",
    *,
    assume_finite: bool,
) -> Manifest:
    advance = ByteCounter("hash source", sum(checkpoint.file_sizes.values()), progress)
    files = list(checkpoint.hashed_files.values())
    with beside(workers, hash_file, files, advance) as hashes:  # which takes as long as everything else
        is_store = isinstance(target, Store)
        preparation = prepare(checkpoint, options, progress, workers, assume_finite=assume_finite, to_store=is_store)
        record = preparation.record.model_dump()
        decisive = [__version__, record, options.max_shard_bytes, preparation.source_sizes, list(options.drafts)]
        if checkpoint.is_immutable:
            decisive += [checkpoint.id, checkpoint.commit]
        if preparation.draft_file is not None:
            decisive += [preparation.draft_file.record.sha256, preparation.screen is not None]
        staging = open_staging(target, fingerprint(*decisive))
        try:
            encoded = _encode(preparation, workers, staging, progress, hashes)
            sources = source_records(checkpoint, result_of(hashes))
            known = {record.path: record for record in sources} if preparation.links_target else {}
            placed = preparation.placed_files(recipe.further if recipe else ())
            staging.place_files(placed, known, workers, progress)
            for name, content in preparation.contents.items():
                staging.write_file(name, content)
            manifest = describe(preparation, sources, encoded, staging.records(known, progress))
            if recipe is not None:
                manifest = recipe.compared(manifest, encoded, preparation.layout)
            checkpoint.check_unchanged()
            if isinstance(target, Path):  # a store's commit looks
                check_target(target, options.force)
            staging.commit(manifest.to_bytes())
        except (NonFiniteError, DifferentPackageError):
            staging.discard()
            raise
        finally:
            staging.close()
            preparation.close()
    return manifest


def _encode(
    preparation: Preparation, workers: Executor, staging: Staging, progress: Progress, hashes: Future[list[str]]
) -> dict[str, EncodedTensor]:
    """Encode the tensors of every shard that an earlier run did not finish from the same weights."""
    surveys = {survey.plan.name: survey for survey in preparation.surveys}
    finished = staging.finished(preparation.layout, workers)
    if not preparation.checkpoint.is_immutable:
        names = sorted({encoded.name for shard in finished for encoded in shard.tensors})
        sha256s = dict(zip(names, workers.map(hash_tensor, [surveys[name] for name in names]), strict=True))
        finished = [shard for shard in finished if all(each.sha256 == sha256s[each.name] for each in shard.tensors)]
    staging.begin(preparation.layout, finished)
    stored = {encoded.name for shard in finished for encoded in shard.tensors}

    pieces = [
        EncodePiece(tuple((surveys[name], arrays) for name, arrays in tensors.items()), sink)
        for sink, tensors in staging.sinks()
    ]
    begun = {survey.plan.name for piece in pieces for survey, _ in piece.tensors}
    pieces += [EncodePiece(((surveys[name], ()),), None) for name in surveys if name not in begun | stored]
    pieces.sort(key=lambda piece: piece.tensors[0][0].plan.tensor.rank)
    kept = sum(surveys[name].plan.num_bytes for name in stored - begun)
    advance = ByteCounter("encode", kept + sum(piece.num_bytes for piece in pieces), progress)
    advance(kept)
    written = workers.map(EncodeTensors(preparation.record), pieces, unless_failed(hashes, advance), staging.accept)
    encoded: dict[str, EncodedTensor] = {}
    for each in itertools.chain(*(shard.tensors for shard in finished), *(piece.tensors for piece in written)):
        arrays = encoded[each.name].arrays if each.name in encoded else {}  # in another shard
        encoded[each.name] = replace(each, arrays=arrays | each.arrays)
    return encoded
