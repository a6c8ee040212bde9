"""Weights in slices of rows as 16-bit patterns, wherever they lie; of a checkpoint, with what `quantize` would do."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any, Literal, cast

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, U16
from mxconv.checkpoint.fp8_matrix import Fp8Matrix
from mxconv.checkpoint.quantizer import check_quantizer
from mxconv.checkpoint.source import Checkpoint, SourceTensor
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.codecs.float16 import BF16, FORMATS, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import CASTS, MAX_SLICE_WEIGHTS, Recognized, choose_codec, is_rounded, rounded
from mxconv.drafts.kind import reader_of
from mxconv.errors import CheckpointError


@dataclass(frozen=True)
class WeightTensor:
    """A tensor that can be read in slices of rows as 16-bit patterns, if it is a 16-bit float."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    float_format: FloatFormat | None  # None: only named, not counted
    is_quantized: bool  # in the package, or by `quantize` with its defaults
    reason: str
    rows: Callable[[int, int], U16] = field(repr=False)
    release: Callable[[int, int], None] = field(repr=False)
    codec: str | None = None  # of a package
    num_stored_bytes: int = 0
    draft_rows: Callable[[int, int], F32] | None = field(default=None, repr=False)  # a package's
    note: str | None = None
    matrices: Callable[[], list["WeightTensor"]] | None = field(default=None, repr=False)  # looked at in its place

    @property
    def num_weights(self) -> int:
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether the codecs can encode it."""
        return len(self.shape) == 2 and self.num_weights > 0

    def slices(self) -> Iterator[tuple[int, int, U16]]:
        """First row, end and patterns of ascending slices; those of a matrix are whole tiles."""
        if self.num_weights == 0:
            return
        num_rows = self.shape[0] if self.shape else 1
        multiple = TILE_ROWS if self.is_matrix else 1
        step = max(MAX_SLICE_WEIGHTS // (self.num_weights // num_rows) // multiple, 1) * multiple
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            yield start, stop, self.rows(start, stop)
            self.release(start, stop)


@dataclass(frozen=True)
class OpenWeights:
    """The tensors of an open checkpoint or package."""

    source: str  # as given
    kind: Literal["checkpoint", "package"]
    commit: str | None
    tensors: tuple[WeightTensor, ...]  # sorted by name
    notes: tuple[str, ...] = ()
    reopen: Callable[[], AbstractContextManager["OpenWeights"]] | None = None  # in another process


def with_experts(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """The tensor, with its experts as matrices that are read from its own rows.

    Args:
        tensor: (experts, ...), whose rows are experts.
        stack: its shape and axes.
    """
    return replace(tensor, matrices=lambda: [_expert(tensor, stack, n) for n in range(stack.num_experts)])


def stacked(tensor: WeightTensor, stack: StackedExperts) -> WeightTensor:
    """The tensor, with patterns and draft that are stacked from its experts."""

    @cache
    def experts() -> list[WeightTensor]:
        assert tensor.matrices is not None
        return tensor.matrices()

    def rows(start: int, stop: int) -> U16:
        return np.stack([stack.matrix(e.rows(0, e.shape[0])) for e in experts()[start:stop]])

    def draft_rows(start: int, stop: int) -> F32:
        found = []
        for expert in experts()[start:stop]:
            assert expert.draft_rows is not None
            found.append(stack.matrix(expert.draft_rows(0, expert.shape[0])))
        return np.stack(found)

    def release(start: int, stop: int) -> None:
        for expert in experts()[start:stop]:
            expert.release(0, expert.shape[0])

    return replace(tensor, rows=rows, draft_rows=draft_rows, release=release, matrices=experts)


def _expert(tensor: WeightTensor, stack: StackedExperts, number: int) -> WeightTensor:
    def rows(start: int, stop: int) -> U16:
        (stored,) = tensor.rows(number, number + 1)
        return np.ascontiguousarray(stack.matrix(stored)[start:stop])

    def release(start: int, stop: int) -> None:
        if stop == stack.matrix_shape[0]:
            tensor.release(number, number + 1)

    return replace(
        tensor,
        name=f"{tensor.name}[{number}]",
        shape=stack.matrix_shape,
        rows=rows,
        release=release,
        matrices=None,
    )


def decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """The BF16 weights of a tensor of FP8 bytes."""
    return replace(tensor, float_format=BF16, rows=fp8.patterns, note="FP8, decoded to BF16", matrices=None)


def with_decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """The tensor of FP8 bytes, with its decoded weights as its matrix."""
    return replace(tensor, matrices=lambda: [decoded(tensor, fp8)])


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
