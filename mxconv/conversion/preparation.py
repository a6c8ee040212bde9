"""Everything up to the first written byte: plan, survey, lay out. This is what `--dry-run` shows.

Slices are as large as the memory allows that a worker may have.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mxconv.arch.families.registry import describe_values
from mxconv.checkpoint.source import Checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import TensorPlan, check_any_quantized, plan_tensors
from mxconv.conversion.survey import Survey, SurveyTensor, must_check_kept, quantized_arrays
from mxconv.errors import CheckpointError, MxconvError
from mxconv.package.growing_shard import PlacedFile
from mxconv.package.level_record import SCREEN_FILE, check_relative
from mxconv.package.manifest import FILE_NAME, OptionsRecord
from mxconv.package.shard_layout import ShardLayout, plan_layout
from mxconv.package.stored import StoredArray
from mxconv.progress import Progress, silent
from mxconv.workers import ByteCounter, Executor, Workers

if TYPE_CHECKING:
    from mxconv.conversion.draft_file import DraftFile
    from mxconv.conversion.drafts import PackedDrafts
    from mxconv.package.head_screen import HeadScreen
from dataclasses import replace

from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.plan import MAX_SLICE_WEIGHTS
from mxconv.kernels.engine import NUMPY, choose_kernel

TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
# measured, and rounded up: docs/scale.md, "Memory"
PROCESS_BYTES = 150_000_000  # libraries, Ray's and the codecs' tables
WEIGHT_BYTES = 16  # of one weight of a slice: patterns, codes, what lies between
NUMPY_PROCESS_BYTES = 210_000_000  # fits of tables take more there
NUMPY_WEIGHT_BYTES = 64
STORE_BYTES = 120_000_000  # of a store: its client, the block that was read last, and what waits to be sent
COPIED_BYTES = 4  # of a tensor that is copied, for each weight that a slice may have


@dataclass(frozen=True)
class Preparation:
    """A conversion before its first byte is written: what `--dry-run` prints."""

    checkpoint: Checkpoint
    options: QuantizeOptions
    record: OptionsRecord
    surveys: list[Survey]
    layout: ShardLayout
    drafts: "PackedDrafts | None"
    contents: dict[str, bytes]  # of each small file that is made
    links_target: bool  # the source's own weight files become part of the package
    uses_store: bool  # reads from one, or the package goes to one
    draft_file: "DraftFile | None" = None  # that gave some surveys their codes
    screen: "HeadScreen | None" = None  # of its 4-bit draft

    @property
    def source_sizes(self) -> dict[str, int]:
        """Bytes of each weight file and the index."""
        sizes = self.checkpoint.file_sizes
        return {relative_name(path, self.checkpoint): num_bytes for path, num_bytes in sizes.items()}

    @property
    def num_bytes_source(self) -> int:
        return sum(survey.plan.tensor.num_bytes_stored for survey in self.surveys)

    @property
    def worker_bytes(self) -> int:
        """Memory that a worker needs at most."""
        return worker_bytes([survey.plan for survey in self.surveys], self.uses_store)

    @property
    def quantized(self) -> list[Survey]:
        return [survey for survey in self.surveys if survey.plan.is_quantized]

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over weights, of the quantized tensors: scales, escapes and padding counted."""
        num_bytes = sum(array.num_bytes for survey in self.quantized for array in quantized_arrays(survey))
        return 8 * num_bytes / sum(survey.plan.num_weights for survey in self.quantized)

    @property
    def main_dtype(self) -> Literal["BF16", "F16"]:
        """The 16-bit format that most quantized weights are in."""
        weights = {"BF16": 0, "F16": 0}
        for survey in self.quantized:
            if survey.plan.float_format is not None:  # MXFP4 of the source is in none
                weights[survey.plan.float_format.name] += survey.plan.num_weights
        return "BF16" if weights["BF16"] >= weights["F16"] else "F16"

    def placed_files(self, further: Sequence[PlacedFile] = ()) -> list[PlacedFile]:
        """The files that become part of the package as they are: configuration, tokenizer and licence; the target's own
        where they are included; those of drafts; further ones."""
        checkpoint = self.checkpoint
        files = [PlacedFile(relative_name(path, checkpoint), path, link=False) for path in checkpoint.companion_files]
        if self.links_target:
            files += [PlacedFile(name, checkpoint.root / name, link=True) for name in self.source_sizes]
        return [*files, *(self.drafts.files if self.drafts else []), *further]

    def close(self) -> None:
        """Let go of a file that gave codes."""
        if self.draft_file is not None:
            self.draft_file.close()

    @property
    def is_lossless(self) -> bool:
        """Whether the 16-bit source can be rebuilt from the package alone."""
        if self.options.codec == "mxfp4":
            return self.record.target == "include"
        return all(survey.rescale_factor == 1.0 for survey in self.surveys)


def prepare(
    checkpoint: Checkpoint,
    options: QuantizeOptions,
    progress: Progress = silent,
    workers: Executor | None = None,
    *,
    assume_finite: bool = False,
    to_store: bool = False,
) -> Preparation:
    """Everything up to the first written byte: plan, survey, lay out.

    Args:
        checkpoint: open.
        options: what to do.
        progress: told about every surveyed tensor.
        workers: who surveys; as many threads as the options say if None.
        assume_finite: leave finding non-finite weights to the encoder of MXFP4, which is surveyed for nothing else.
        to_store: the package goes to an object store, for which a worker needs more memory.

    Raises:
        MxconvError: the source or the options do not allow it.
    """
    record = options.record(is_local=checkpoint.commit is None and not checkpoint.is_on_store)
    uses_store = to_store or checkpoint.is_on_store
    plans = fit_slices(plan_tensors(checkpoint, options), options.memory_bytes, uses_store)
    derived_files = _with_dtype(checkpoint.derive_files(), options.dtype)
    drafts = None
    if options.drafts:
        from mxconv.conversion.drafts import PackedDrafts  # late: every kind of draft, and the decoders

        drafts = PackedDrafts.open(options.drafts, checkpoint, options.codec)
    is_safetensors = checkpoint.container == "safetensors"
    must_store = not is_safetensors or any(plan.is_cast for plan in plans)
    if must_store and record.target == "reference":
        raise CheckpointError(
            f"{checkpoint.id}: {'F32 weights' if is_safetensors else f'a {checkpoint.container} checkpoint'}; only "
            "16-bit safetensors can be referenced. Use --target include."
        )
    executor = workers or Workers(options.num_threads)
    if options.codec == "mxfp4" and assume_finite:
        if kept := [plan for plan in plans if must_check_kept(plan, options)]:
            _survey(kept, options, progress, executor)
        surveys = [Survey(plan) for plan in plans]
    else:
        surveys = _survey(plans, options, progress, executor)
    check_any_quantized(checkpoint, [survey.plan for survey in surveys])
    includes_target = options.codec == "mxfp4" and record.target == "include"
    links_target = includes_target and options.links_target and not (must_store or checkpoint.is_on_store)
    draft_file = None
    if options.draft_weights is not None:
        from mxconv.conversion.draft_file import DraftFile  # late: only where codes are given

        draft_file = DraftFile.open(Path(options.draft_weights))
        surveys = draft_file.give(surveys)
    screen = None
    if draft_file is not None and draft_file.has_screen and options.head_screen:
        described = describe_values(checkpoint.config or {})
        screen = draft_file.screen((described.vocab_size, described.hidden_size))
    groups = _groups(surveys, options, stores_target=includes_target and not links_target)
    layout = plan_layout(groups, options.max_shard_bytes)
    check_names(checkpoint, layout, drafts, links_target)
    contents = derived_files | layout.indexes | ({} if screen is None else {SCREEN_FILE: screen.file})
    return Preparation(
        checkpoint, options, record, surveys, layout, drafts, contents, links_target, uses_store, draft_file, screen
    )


def _with_dtype(derived_files: dict[str, bytes], dtype: str | None) -> dict[str, bytes]:
    """Files in which a config.json that is made names the float that --dtype rounds to."""
    if dtype is None or "config.json" not in derived_files:
        return derived_files
    config = json.loads(derived_files["config.json"]) | {"torch_dtype": TORCH_DTYPES[dtype]}
    return derived_files | {"config.json": json.dumps(config, indent=1).encode()}


def _survey(plans: list[TensorPlan], options: QuantizeOptions, progress: Progress, workers: Executor) -> list[Survey]:
    total = sum(plan.num_bytes for plan in plans if plan.is_quantized)
    advance = ByteCounter("survey", total, progress)
    surveys = workers.map(SurveyTensor(options), sorted(plans, key=lambda plan: plan.tensor.rank), advance)
    return sorted(surveys, key=lambda survey: survey.plan.name)  # the order of the plans


def _groups(
    surveys: list[Survey], options: QuantizeOptions, *, stores_target: bool
) -> dict[str, dict[str, tuple[StoredArray, ...]]]:
    """Which arrays go into which files: BSFP planes beside what is kept; MXFP4 codes apart from their target."""
    whole: dict[str, tuple[StoredArray, ...]] = {
        s.plan.name: (StoredArray(s.plan.name, s.plan.dtype, s.plan.tensor.shape),) for s in surveys
    }
    quantized = {s.plan.name: quantized_arrays(s) for s in surveys if s.plan.is_quantized}
    if options.codec == "bsfp":
        return {"bsfp": {name: quantized.get(name, arrays) for name, arrays in whole.items()}}
    return {"mxfp4": quantized} | ({"model": whole} if stores_target else {})


def relative_name(path: Path, checkpoint: Checkpoint) -> str:
    """A source file's name in manifest and package."""
    return path.relative_to(checkpoint.root).as_posix()


def check_names(checkpoint: Checkpoint, layout: ShardLayout, drafts: "PackedDrafts | None", links_target: bool) -> None:
    """Check the names of files and arrays.

    A source file of the name of one of ours would be linked in its place and, when an interrupted conversion goes on,
    be written to.

    Raises:
        CheckpointError: a name in the source is one that we write, or none that a manifest may hold.
        MxconvError: the same for a draft.
    """
    ours = {FILE_NAME, SCREEN_FILE, *layout.indexes, *(shard.file_name for shard in layout.shards)}
    weights = [*checkpoint.weight_files, *([checkpoint.index_file] if checkpoint.index_file else [])]
    for path in [*weights, *checkpoint.companion_files]:
        name = path.relative_to(checkpoint.root).as_posix()
        if name in ours and (links_target or path not in weights):
            raise CheckpointError(
                f"{path}: has the name of a file that mxconv writes; another name is required. Rename it."
            )
        _check_path(name, f"{path}: ", CheckpointError)
    for label, file in drafts.labelled_files if drafts else ():
        _check_path(file.name, label, MxconvError)
    written = layout.places.keys()
    for name in checkpoint.tensors:
        if name in written and all(array.name != name for array in layout.arrays.get(name, ())):
            raise CheckpointError(
                f"{checkpoint.tensors[name].path}: tensor {name} has the name of an array that mxconv writes; "
                "unique names are required. Rename the tensor in the checkpoint."
            )


def _check_path(name: str, label: str, error: type[MxconvError]) -> None:
    try:
        check_relative(name)
    except ValueError as reason:
        raise error(f"{label}{reason}. Rename it.") from reason


def fit_slices(plans: Sequence[TensorPlan], memory_bytes: int | None, uses_store: bool = False) -> list[TensorPlan]:
    """Plans whose slices fit into the bytes that a worker may have; None gives slices of the usual length.

    `uses_store`: it reads from a store, or writes to one.

    Raises:
        MxconvError: less than the smallest slice of some tensor takes.
    """
    if memory_bytes is None:
        return list(plans)
    process, weight = _rates()
    store = STORE_BYTES if uses_store else 0
    hungriest = max(plans, key=lambda plan: _needed(plan, 1), default=None)
    if hungriest is not None and memory_bytes < (least := store + _needed(hungriest, 1)):
        raise MxconvError(
            f"--memory {memory_bytes}: at least {least:,} bytes are required, for tensor "
            f"{hungriest.name} of shape {list(hungriest.tensor.shape)}. Give workers more, or start fewer of them."
        )
    for_slices = memory_bytes - process - store
    return [
        replace(plan, slice_weights=min(MAX_SLICE_WEIGHTS, max(1, (for_slices - _held(plan)) // weight)))
        for plan in plans
    ]


def worker_bytes(plans: Sequence[TensorPlan], uses_store: bool = False) -> int:
    """The most bytes that a worker needs, whatever tensors it gets."""
    most = max((_needed(plan, plan.slice_weights) for plan in plans), default=_rates()[0])
    return most + (STORE_BYTES if uses_store else 0)


def _needed(plan: TensorPlan, slice_weights: int) -> int:
    """Bytes for a tensor, with slices of so many weights or of the least that can be."""
    process, weight = _rates()
    slice_weights = min(slice_weights, plan.tensor.num_elements)
    return process + _held(plan) + weight * max(slice_weights, _least_weights(plan))


def _least_weights(plan: TensorPlan) -> int:
    """Weights of the smallest slice: the rows of a tile, or one row of what is copied."""
    if plan.is_quantized and plan.carried is None:
        return TILE_ROWS * plan.matrix_shape[1]
    shape = plan.tensor.shape
    num_rows = TILE_ROWS if plan.carried is not None else 1
    row_bytes = plan.tensor.num_bytes // max(shape[0], 1) if shape else DTYPES[plan.tensor.dtype].num_bits // 8
    if plan.carried is not None:
        row_bytes //= max(shape[1], 1)
    return -(-num_rows * row_bytes // COPIED_BYTES)


def _held(plan: TensorPlan) -> int:
    """Bytes beside its slices: the pages of the expert that is read."""
    is_stack = plan.experts is not None or plan.carried is not None
    return plan.tensor.num_bytes // plan.tensor.shape[0] if is_stack else 0


def _rates() -> tuple[int, int]:
    """Bytes of a process, and of a weight of a slice."""
    is_numpy = choose_kernel() == NUMPY
    return (NUMPY_PROCESS_BYTES, NUMPY_WEIGHT_BYTES) if is_numpy else (PROCESS_BYTES, WEIGHT_BYTES)
