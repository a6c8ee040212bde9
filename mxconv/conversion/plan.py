"""Which tensor becomes what, and why: decided from names, dtypes and shapes, before any weight is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.errors import CheckpointError

INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
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
LOOKED_UP = ("*embed_tokens_per_layer.weight", "*wpe.weight", "speculator.emb.*")  # never a head too
HEADS = ("lm_head.weight", "*.lm_head.weight", "embed_out.weight")
MIXTURES = ("spire.memory_weights",)
ROUTERS = ("*.mlp.gate.weight", "*.router.weight", "*.block_sparse_moe.gate.weight", "*.shared_expert_gate.weight")


@dataclass(frozen=True)
class TensorPlan:
    """What happens to one tensor."""

    tensor: SourceTensor
    codec: Codec | Literal["keep"]
    reason: str
    float_format: FloatFormat | None  # of the result where it is a 16-bit float
    is_cast: bool = False  # rounded from F32

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def dtype(self) -> str:
        """As safetensors names it, after any cast."""
        return self.float_format.name if self.float_format else self.tensor.dtype

    @property
    def num_bytes(self) -> int:
        """Of the 16-bit tensor, after any cast."""
        return self.tensor.num_elements * 2 if self.is_cast else self.tensor.num_bytes

    @property
    def matrix_shape(self) -> tuple[int, int]:
        rows, columns = self.tensor.shape
        return rows, columns


def plan_tensors(checkpoint: Checkpoint, options: QuantizeOptions) -> list[TensorPlan]:
    """Decide on every tensor.

    Raises:
        CheckpointError: a tensor that would be quantized has an unsupported dtype, F32 comes without --dtype,
            --dtype contradicts the source, or nothing at all would be quantized.
    """
    tied = is_tied(checkpoint.config, checkpoint.tensors)
    plans = [_plan(tensor, options, tied) for tensor in checkpoint.tensors.values()]
    check_any_quantized(checkpoint, plans)
    return plans


def check_any_quantized(checkpoint: Checkpoint, plans: list[TensorPlan]) -> None:
    """Refuse a conversion that changes nothing.

    Raises:
        CheckpointError: every tensor stays in 16 bits.
    """
    if not any(plan.codec != "keep" for plan in plans):
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


def _plan(tensor: SourceTensor, options: QuantizeOptions, tied: bool) -> TensorPlan:
    codec, reason = choose_codec(tensor, options, tied)
    if tensor.dtype in FORMATS:
        wanted = CASTS[options.dtype].name if options.dtype else tensor.dtype
        if wanted != tensor.dtype:
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name} is {tensor.dtype}, but --dtype {options.dtype} was given; "
                "--dtype rounds F32 only, 16-bit weights stay as they are. Leave it out."
            )
        return TensorPlan(tensor, codec, reason, FORMATS[tensor.dtype])
    if tensor.dtype == "F32" and options.dtype:
        return TensorPlan(tensor, codec, reason, CASTS[options.dtype], is_cast=True)
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


def choose_codec(tensor: SourceTensor, options: QuantizeOptions, tied: bool) -> tuple[Codec | Literal["keep"], str]:
    """What a tensor becomes, and why."""
    name = tensor.name
    for glob in options.skip:
        if fnmatchcase(name, glob):
            return "keep", f"--skip {glob}"
    if len(tensor.shape) != 2:
        return "keep", "not a matrix"
    if 0 in tensor.shape:
        return "keep", "empty"
    if tensor.dtype in INTEGERS:
        return "keep", "integers"
    if matches(name, HEADS):
        return (options.codec, "output head") if options.lm_head == "quantize" else ("keep", "--lm-head keep")
    if matches(name, EMBEDDINGS):
        if tied and not matches(name, LOOKED_UP) and options.lm_head == "quantize":
            return options.codec, "output head, tied to the embeddings"
        return "keep", "embeddings"
    if matches(name, ROUTERS):
        return "keep", "expert router"
    if matches(name, MIXTURES):
        return "keep", "mixture of memories"
    return options.codec, "matrix"
