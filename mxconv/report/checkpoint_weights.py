"""The weights of a checkpoint, with what `quantize` would do to each by default."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from mxconv.arch.config import ModelConfig
from mxconv.arrays import U16
from mxconv.checkpoint.quantizer import check_quantizer
from mxconv.checkpoint.source import Checkpoint, SourceTensor
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import CASTS, Recognized, choose_codec, is_rounded
from mxconv.conversion.rows import rounded
from mxconv.drafts.reader_config import reader_of
from mxconv.errors import CheckpointError
from mxconv.report.open_weights import OpenWeights, WeightTensor, with_decoded, with_experts

Dtype = Literal["bf16", "fp16"]


def checkpoint_weights(checkpoint: Checkpoint, dtype: Dtype | None) -> OpenWeights:
    """The tensors of a checkpoint, F32 ones rounded to `dtype`, and notes on those that are not counted."""
    options, recognized = QuantizeOptions(dtype=dtype), Recognized.of(checkpoint)
    tensors: list[WeightTensor] = []
    uncounted: list[WeightTensor] = []
    notes: list[str] = []
    for name, tensor in checkpoint.tensors.items():
        stack, fp8 = recognized.stacks.get(name), recognized.fp8.get(name)
        codec, reason = choose_codec(tensor, options, recognized)
        wanted = CASTS[dtype] if dtype is not None and name not in recognized.scales else None
        if wanted is not None and not is_rounded(tensor, wanted, recognized):
            wanted = None
        weights = source_tensor(tensor, codec != "keep", reason, wanted)
        if tensor.dtype == "F32" and wanted is None and name not in recognized.scales:
            uncounted.append(weights)
        if fp8 is not None:
            weights = with_decoded(weights, fp8)
        if stack is not None and weights.float_format is not None:
            weights = with_experts(weights, stack)
        tensors.append(weights)
    if uncounted:
        types = ", ".join(dict.fromkeys(tensor.dtype for tensor in uncounted))
        needs = "quantize needs --dtype bf16 or fp16 for them, and so does inspect."
        keeps = "quantize leaves them as they are."  # norms of a GGUF file, say
        notes.append(
            f"{len(uncounted)} of {len(tensors)} tensors are {types} and not counted; "
            f"{needs if recognized.is_quantized or any(tensor.is_quantized for tensor in uncounted) else keeps}"
        )
    try:
        check_quantizer(checkpoint)
    except CheckpointError as error:
        notes.append(f"quantize refuses this checkpoint: {error}")
    if mtp := mtp_note(recognized.config, checkpoint.tensors):
        notes.append(mtp)
    if head := head_note(checkpoint.config or {}):
        notes.insert(0, head)
    return OpenWeights(checkpoint.id, "checkpoint", checkpoint.commit, tuple(tensors), tuple(notes))


def source_tensor(tensor: SourceTensor, is_quantized: bool, reason: str, cast_to: FloatFormat | None) -> WeightTensor:
    """A tensor as it is, or rounded to a 16-bit float."""
    float_format, note = cast_to or FORMATS.get(tensor.dtype), None
    if cast_to is not None:
        note = f"rounded from {tensor.source_type}"
    elif tensor.quantized_type is not None or (tensor.dtype == "F32" and is_quantized):
        note = f"{tensor.source_type}: quantize needs --dtype bf16 or fp16"
    elif float_format is None:
        note = f"{tensor.dtype}: not a 16-bit float"

    def rows(start: int, stop: int) -> U16:
        found = tensor.rows(start, stop) if tensor.shape else tensor.array().reshape(1)
        return cast(U16, found) if cast_to is None else rounded(found, tensor.dtype, cast_to)

    return WeightTensor(
        name=tensor.name,
        dtype=float_format.name if float_format else tensor.source_type,
        shape=tensor.shape,
        float_format=float_format,
        is_quantized=is_quantized,
        reason=reason,
        rows=rows,
        release=lambda start, stop: tensor.release(start, stop if tensor.shape else None),
        note=note,
    )


def head_note(config: Mapping[str, Any]) -> str | None:
    """A line about a draft head in the format of vllm-project/speculators; None for a model.

    Source:
        SpeculatorModelConfig of speculators 0.9.
    """

    def section(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = values.get(key)
        return found if isinstance(found, dict) else {}

    if "speculators_model_type" not in config and "speculators_config" not in config:
        return None
    method, layer = section(config, "speculators_config"), section(config, "transformer_layer_config")
    kind = config.get("speculators_model_type") or method.get("algorithm")
    target = section(method, "verifier").get("name_or_path") or "an unnamed model"
    own = reader_of(config)
    return (
        f"draft head, {kind} (speculators format), for {target}: {layer.get('num_hidden_layers', '?')} layers of width "
        f"{layer.get('hidden_size', '?')}; it knows {config.get('draft_vocab_size') or 'all'} of the target's "
        f"{layer.get('vocab_size', '?')} tokens. "
        + (f"Run it below its model with --draft {own}:PATH_OR_ID." if own else "mxconv does not run such heads.")
    )


def mtp_note(config: ModelConfig | None, tensors: Iterable[str]) -> str | None:
    """A line about the MTP module of a model with these tensors; None where it has none or its family is unknown."""
    if config is None or config.mtp is None:
        return None
    own = [config.own_name(name) for name in tensors]
    num_tensors = sum(name is not None and config.mtp.has(name) for name in own)
    if not num_tensors:
        return None
    return f"MTP layer: {num_tensors} tensors under {', '.join(config.mtp.modules)} draft for it with --draft mtp."
