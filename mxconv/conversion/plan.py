"""Which tensor becomes what, and why: decided from names, dtypes and shapes, before any weight is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.whole_model import HeldTensor, check_whole, checkpoint_config, is_described
from mxconv.arrays import F32, U16
from mxconv.checkpoint.folder import check_no_adapter, check_no_part
from mxconv.checkpoint.fp8_matrix import Fp8Matrix, fp8_matrices
from mxconv.checkpoint.quantizer import INTEGERS, check_quantizer
from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.stacked import CarriedTensor, StackedExperts, carried_tensors, stacked_experts
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.bsfp.speq import rescale
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.options import QuantizeOptions
from mxconv.errors import CheckpointError

MAX_SLICE_WEIGHTS = 1 << 20  # a worker works on 2 MB of weights; preparation.py says how much memory that takes
TensorCodec = Literal["mxfp4", "mxint8", "bsfp", "keep"]
CASTS = {"bf16": BF16, "fp16": FP16}
EMBEDDINGS = (
    "*embed_tokens.weight",
    "*embed_tokens_per_layer.weight",
    "*embed_in.weight",
    "*embeddings.weight",
    "*wte.weight",
    "*wpe.weight",
    "speculator.emb.*",
)
# never a head too
LOOKED_UP = ("*embed_tokens_per_layer.weight", "*wpe.weight", "speculator.emb.*")
HEADS = ("lm_head.weight", "*.lm_head.weight", "embed_out.weight")
ROUTERS = (
    "*.mlp.gate.weight",
    "*.block_sparse_moe.gate.weight",
    "*.feed_forward.gate.weight",
    "*.mixer.gate.weight",
    "*.router.weight",
    "*.router.gate.weight",
    "*.router.layer.weight",
    "*.router.proj.weight",
    "*.shared_expert_gate.weight",
)
RATES = ("*.in_proj_a.weight", "*.in_proj_b.weight", "*.in_proj_ba.weight")  # few rows, which steer a memory
KEPT = {
    ROUTERS: "expert router",
    RATES: "rates of a recurrence",
    ("*_bias",): "biases of experts",  # one for each expert and feature
    ("spire.memory_weights",): "mixture of memories",
}


@dataclass(frozen=True)
class TensorPlan:
    """The codec of one tensor, and why."""

    tensor: SourceTensor
    codec: TensorCodec
    reason: str
    float_format: FloatFormat | None  # of the result where it is a 16-bit float
    is_cast: bool = False  # rounded from F32, or whatever the tensor's dtype is
    experts: StackedExperts | None = None  # of a tensor that is a stack of matrices
    carried: CarriedTensor | None = None  # of MXFP4 that the source has
    fp8: Fp8Matrix | None = None  # of a matrix that stays FP8: what is encoded are the weights that it stands for
    slice_weights: int = MAX_SLICE_WEIGHTS  # at most that a worker takes at a time; no byte depends on it

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def is_quantized(self) -> bool:
        """Whether the draft has codes for it; what is kept is in both levels as it is."""
        return self.codec != "keep"

    @property
    def pattern_format(self) -> FloatFormat:
        """The 16-bit float of a quantized tensor."""
        assert self.float_format is not None
        return self.float_format

    @property
    def dtype(self) -> str:
        """As safetensors names it, after any cast."""
        return self.float_format.name if self.float_format and self.fp8 is None else self.tensor.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the 16-bit tensor, after any cast."""
        return self.tensor.num_elements * 2 if self.is_cast else self.tensor.num_bytes

    @property
    def num_weights(self) -> int:
        """Carried codes come two a byte, their scales are none."""
        if self.carried is None:
            return self.tensor.num_elements
        return 2 * self.tensor.num_elements if self.carried.part == "codes" else 0

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(out_features, in_features) of the matrix, or of each expert."""
        if self.experts is not None:
            return self.experts.matrix_shape
        rows, columns = self.tensor.shape
        return rows, columns

    @property
    def stored_shape(self) -> tuple[int, int]:
        """The shape of the matrix that the package's arrays hold."""
        return self.matrix_shape if self.experts is None else self.experts.stored_shape


@dataclass(frozen=True)
class Recognized:
    """Relations among a checkpoint's tensors, read from names, dtypes and shapes."""

    config: ModelConfig | None  # of a model whose family is described
    is_tied: bool  # the output head is the embedding matrix
    stacks: Mapping[str, StackedExperts]  # experts in one tensor
    fp8: Mapping[str, Fp8Matrix]  # with block scales
    carried: Mapping[str, CarriedTensor]  # MXFP4 that the checkpoint has already
    is_quantized: bool  # a quantizer has rounded some tensors, so that --dtype is about all of them
    has_f32: bool  # some matrices are F32, so that --dtype is about these

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Recognized":
        """Raises CheckpointError where tensors that belong together contradict each other."""
        tensors, config = checkpoint.tensors, checkpoint.config
        fp8 = fp8_matrices(tensors, config)
        is_quantized = any(tensor.quantized_type for tensor in tensors.values())
        described = checkpoint_config(checkpoint) if is_described(config) else None
        tied = is_tied(config if described is None else {"tie_word_embeddings": described.tie_word_embeddings}, tensors)
        has_f32 = any(tensor.dtype == "F32" and len(tensor.shape) > 1 for tensor in tensors.values())
        return cls(described, tied, stacked_experts(tensors), fp8, carried_tensors(tensors), is_quantized, has_f32)

    @cached_property
    def scales(self) -> frozenset[str]:
        """The names of the tensors that are scales of FP8 matrices."""
        return frozenset(matrix.scales.name for matrix in self.fp8.values())


def plan_tensors(checkpoint: Checkpoint, options: QuantizeOptions) -> list[TensorPlan]:
    """Decide on every tensor.

    Raises:
        CheckpointError: it is an adapter, a part of a model or packed by another quantizer; a tensor that would be
            quantized has an unsupported dtype, F32 comes without --dtype, --dtype contradicts the source, or nothing
            at all would be quantized.
        ModelError: a tensor that the model requires is missing, or has a shape or dtype that its readers do not take.
    """
    check_no_adapter(checkpoint.id, checkpoint.root, checkpoint.tensors, checkpoint.config)
    if checkpoint.index_file is None:
        for path in checkpoint.weight_files:
            check_no_part(path.name, f"{path}: is")
    check_quantizer(checkpoint, options.skip)
    recognized = Recognized.of(checkpoint)
    plans = [_plan(tensor, options, recognized) for tensor in checkpoint.tensors.values()]
    if recognized.config is not None:
        held = {plan.name: HeldTensor(plan.tensor.shape, plan.dtype if plan.fp8 is None else "BF16") for plan in plans}
        check_whole(recognized.config, held, checkpoint.id)
    check_any_quantized(checkpoint, plans)
    return plans


def check_any_quantized(checkpoint: Checkpoint, plans: list[TensorPlan]) -> None:
    """Raises CheckpointError where every tensor stays in 16 bits."""
    if not any(plan.is_quantized for plan in plans):
        raise CheckpointError(
            f"{checkpoint.id}: none of its {len(plans)} tensors would be quantized; at least one matrix is required. "
            "Check the checkpoint and --skip."
        )


def is_tied(config: Mapping[str, Any] | None, tensors: Mapping[str, object]) -> bool:
    """Whether the output head is the embedding matrix."""
    if config is None or any(matches(name, HEADS) for name in tensors):
        return False
    text_config = config.get("text_config")
    nested = text_config if isinstance(text_config, dict) else {}
    return bool(config.get("tie_word_embeddings", nested.get("tie_word_embeddings", False)))


def matches(name: str, globs: tuple[str, ...]) -> bool:
    """Whether a tensor name matches one of the shell patterns."""
    return any(fnmatchcase(name, glob) for glob in globs)


def _plan(tensor: SourceTensor, options: QuantizeOptions, recognized: Recognized) -> TensorPlan:
    codec, reason = choose_codec(tensor, options, recognized)
    if (fp8 := recognized.fp8.get(tensor.name)) is not None:
        return TensorPlan(tensor, codec, reason, None if codec == "keep" else BF16, fp8=fp8)
    if tensor.name in recognized.scales:
        return TensorPlan(tensor, codec, reason, None)
    if codec != "keep" and (carried := recognized.carried.get(tensor.name)) is not None:
        return TensorPlan(tensor, codec, reason, None, carried=carried)
    experts = None if codec == "keep" else recognized.stacks.get(tensor.name)
    wanted = CASTS[options.dtype] if options.dtype else None
    if wanted is not None and is_rounded(tensor, wanted, recognized):
        return TensorPlan(tensor, codec, reason, wanted, is_cast=True, experts=experts)
    if tensor.dtype in FORMATS:
        if wanted is not None and wanted.name != tensor.dtype and not recognized.has_f32:
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name} is {tensor.dtype}, but --dtype {options.dtype} was given; "
                "--dtype rounds F32 only, 16-bit weights stay as they are. Leave it out."
            )
        return TensorPlan(tensor, codec, reason, FORMATS[tensor.dtype], experts=experts)
    if tensor.quantized_type is not None:
        raise CheckpointError(
            f"{tensor.path}: tensor {tensor.name} is {tensor.quantized_type}, which a quantizer has rounded; 16-bit "
            "weights are required. Give --dtype bf16 or --dtype fp16 to round the values of all tensors to these; the "
            "choice is recorded."
        )
    if codec == "keep":
        return TensorPlan(tensor, codec, reason, None)
    if tensor.dtype == "F32":
        raise CheckpointError(
            f"{tensor.path}: tensor {tensor.name} is F32; 16-bit weights are required. "
            "Give --dtype bf16 or --dtype fp16 to round it; the choice is recorded."
        )
    raise CheckpointError(
        f"{tensor.path}: tensor {tensor.name} has dtype {tensor.dtype}, which is not supported; BF16 or F16 (or F32 "
        f"with --dtype) is required. Export the model in 16 bits, or keep the tensor with --skip '{tensor.name}'."
    )


def is_rounded(tensor: SourceTensor, wanted: FloatFormat, recognized: Recognized) -> bool:
    """Whether --dtype rounds this tensor: F32, and where a quantizer was at work also the other 16-bit float."""
    return tensor.dtype == "F32" or (
        recognized.is_quantized and tensor.dtype in FORMATS and tensor.dtype != wanted.name
    )


def choose_codec(tensor: SourceTensor, options: QuantizeOptions, recognized: Recognized) -> tuple[TensorCodec, str]:
    """The codec of a tensor, and why."""
    name = tensor.name
    head: TensorCodec = {"int8": "mxint8", "keep": "keep"}.get(options.head, options.codec)  # type: ignore[assignment]
    if name in recognized.scales:
        return "keep", "scales of FP8 blocks"
    for glob in options.skip:
        if fnmatchcase(name, glob):
            return "keep", f"--skip {glob}"
    carried = recognized.carried.get(name)
    if carried is not None and not matches(carried.partner, options.skip):
        return "mxfp4", "MXFP4 of the source, carried over"
    is_stack = name in recognized.stacks
    if len(tensor.shape) != 2 and not is_stack:
        return "keep", "not a matrix"
    if 0 in tensor.shape:
        return "keep", "empty"
    if tensor.dtype in (*INTEGERS, "C64"):
        return "keep", "no real numbers" if tensor.dtype == "C64" else "integers"
    if name in recognized.fp8 and options.codec == "bsfp":
        return "keep", "FP8, which BSFP would make larger"
    if matches(name, HEADS):
        return ("keep", "--lm-head keep") if head == "keep" else (head, "output head")
    if matches(name, EMBEDDINGS):
        if recognized.is_tied and not matches(name, LOOKED_UP) and head != "keep":
            return head, "output head, tied to the embeddings"
        return "keep", "embeddings"
    for globs, reason in KEPT.items():
        if matches(name, globs):
            return "keep", reason
    return options.codec, "stacked experts" if is_stack else "matrix"


def rounded(rows: NDArray[np.generic], dtype: str, float_format: FloatFormat) -> U16:
    """Rows of a tensor in another float, as patterns of this one: to nearest, ties to even."""
    values = FORMATS[dtype].decode(cast(U16, rows)) if dtype in FORMATS else cast(F32, rows)
    return float_format.encode(values)


@dataclass(frozen=True)
class PatternRows:
    """A matrix as patterns, slice by slice; resident memory stays flat however large it is.

    Of a tensor that is a stack it is the matrix of one expert, as (out_features, in_features).
    """

    plan: TensorPlan
    expert: int = 0
    rescale_factor: float = 1.0

    def slices(self) -> Iterator[tuple[int, NDArray[np.generic], U16]]:
        """Ascending slices of whole tiles, of `slice_weights` or, where a tile's rows have more, of one tile.

        Yields:
            The first row, the source's rows (16-bit patterns, a view unless cast; or bytes of FP8), and the patterns
            that are encoded: the same, or rescaled, or decoded from FP8.
        """
        plan, tensor, matrix = self.plan, self.plan.tensor, None
        num_rows, num_columns = tensor.shape[0], prod(tensor.shape[1:])
        if plan.experts is not None:
            (stored,) = tensor.rows(self.expert, self.expert + 1)
            matrix = plan.experts.matrix(stored)
            num_rows, num_columns = matrix.shape
        step = max(plan.slice_weights // num_columns // TILE_ROWS, 1) * TILE_ROWS
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            rows = tensor.rows(start, stop) if matrix is None else np.ascontiguousarray(matrix[start:stop])
            if plan.fp8 is not None:
                yield start, rows, rescale(plan.fp8.patterns(start, stop), self.rescale_factor, plan.pattern_format)
                tensor.release(start, stop)
                continue
            patterns = rounded(rows, tensor.dtype, plan.pattern_format) if plan.is_cast else cast(U16, rows)
            yield start, patterns, rescale(patterns, self.rescale_factor, plan.pattern_format)
            if plan.experts is None:
                tensor.release(start, stop)
        if plan.experts is not None:
            tensor.release(self.expert, self.expert + 1)
