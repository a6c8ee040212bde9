"""The weights of a checkpoint, with what `quantize` would do to each by default."""

from typing import Literal, cast

from mxconv.arrays import F32, U16
from mxconv.checkpoint.source import Checkpoint, SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import CASTS, Recognized, choose_codec
from mxconv.model.families.table import describe_values
from mxconv.report.draft_head import find_draft_head
from mxconv.report.expert_weights import with_experts
from mxconv.report.fp8_weights import with_decoded
from mxconv.report.mtp_note import mtp_note
from mxconv.report.weights import Weights, WeightTensor

Dtype = Literal["bf16", "fp16"]


def checkpoint_weights(checkpoint: Checkpoint, dtype: Dtype | None) -> Weights:
    options, recognized = QuantizeOptions(dtype=dtype), Recognized.of(checkpoint)
    tensors, notes = [], []
    for name, tensor in checkpoint.tensors.items():
        stack, fp8 = recognized.stacks.get(name), recognized.fp8.get(name)
        codec, reason = choose_codec(tensor, options, recognized)
        weights = source_tensor(tensor, codec != "keep", reason, None if name in recognized.scales else dtype)
        if fp8 is not None:
            weights = with_decoded(weights, fp8)
        if stack is not None and weights.float_format is not None:
            weights = with_experts(weights, stack)
        tensors.append(weights)
    in_f32 = [tensor for tensor in tensors if tensor.dtype == "F32" and tensor.name not in recognized.scales]
    if in_f32:
        needs = "quantize needs --dtype bf16 or fp16 for them, and so does inspect."
        keeps = "quantize leaves them as they are."  # norms of a GGUF file, say
        notes.append(
            f"{len(in_f32)} of {len(tensors)} tensors are F32 and not counted; "
            f"{needs if any(tensor.is_quantized for tensor in in_f32) else keeps}"
        )
    if mtp := mtp_note(lambda: describe_values(checkpoint.config or {}), checkpoint.tensors):
        notes.append(mtp)
    head = find_draft_head(checkpoint)
    if head is not None:
        notes.insert(0, head.describe())
    return Weights(checkpoint.id, "checkpoint", checkpoint.commit, tuple(tensors), tuple(notes), head)


def source_tensor(tensor: SourceTensor, is_quantized: bool, reason: str, dtype: Dtype | None) -> WeightTensor:
    float_format, note = FORMATS.get(tensor.dtype), None
    is_cast = tensor.dtype == "F32" and dtype is not None
    if is_cast and dtype is not None:
        float_format, note = CASTS[dtype], "rounded from F32"
    elif tensor.dtype == "F32" and is_quantized:
        note = "F32: quantize needs --dtype bf16 or fp16"
    elif float_format is None:
        note = f"{tensor.dtype}: not a 16-bit float"

    def rows(start: int, stop: int) -> U16:
        found = tensor.rows(start, stop) if tensor.shape else tensor.array().reshape(1)
        if is_cast and float_format is not None:
            return float_format.encode(cast(F32, found))
        return cast(U16, found)

    return WeightTensor(
        name=tensor.name,
        dtype=float_format.name if float_format else tensor.dtype,
        shape=tensor.shape,
        float_format=float_format,
        is_quantized=is_quantized,
        reason=reason,
        rows=rows,
        release=lambda start, stop: tensor.release(start, stop if tensor.shape else None),
        note=note,
    )
