"""The tensors of a level under GGUF's names, types and row order."""

from dataclasses import replace
from typing import Literal

from mxconv.checkpoint.manifest import TensorRecord
from mxconv.checkpoint.package import Package
from mxconv.errors import ModelError
from mxconv.interop.gguf.gguf_tensor import GgufTensor, four_bit, made_tensor, sixteen_bit
from mxconv.interop.gguf.metadata import Metadata
from mxconv.interop.gguf.parts import first_mixture
from mxconv.interop.gguf.places import EMBEDDING, HEAD, Place, places
from mxconv.interop.gguf.rope_keys import rope_tensors
from mxconv.interop.gguf.stacked_tensor import StackedTensor
from mxconv.model.config import ModelConfig
from mxconv.report.weights import Weights, WeightTensor

Level = Literal["target", "draft"]
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")


def level_tensors(
    package: Package, weights: Weights, metadata: Metadata, level: Level
) -> tuple[list[GgufTensor | StackedTensor], tuple[str, ...]]:
    """The tensors of a file, and what the user should know about them.

    Args:
        package: open.
        weights: the 16-bit weights, in the package or where it references them.
        metadata: names the architecture.
        level: the 16-bit target, or the MXFP4 draft.

    Raises:
        ModelError: a tensor has no place in llama.cpp's model.
    """
    tensors: list[GgufTensor | StackedTensor] = []
    stacks: dict[str, dict[int, GgufTensor]] = {}
    skipped: list[str] = []
    records = {record.name: record for record in package.manifest.tensors}
    known = places(metadata.config, metadata.architecture)
    for weight in weights.tensors:
        name = metadata.config.own_name(weight.name)
        place = None if name is None else known.get(name)
        if place is None:
            _check_is_none_of_its_own(name, weight, metadata)
            skipped.append(weight.name)
            continue
        _check_kind(weight, place)
        found = _tensors(place, package, records[weight.name], weight, metadata, level)
        if place.expert is None:
            tensors += found
        else:
            stacks.setdefault(place.name, {})[place.expert] = found[0]
    tensors += [StackedTensor.of(name, experts, _num_experts(metadata.config)) for name, experts in stacks.items()]
    factors = rope_tensors(metadata.config, metadata.architecture, metadata.long_factors)
    tensors += [made_tensor(name, values) for name, values in factors.items()]
    return tensors, _notes(package, metadata, level, skipped)


def _num_experts(config: ModelConfig) -> int:
    mixture = first_mixture(config)
    return 0 if mixture is None else mixture.routing.num_experts


def _tensors(
    place: Place, package: Package, record: TensorRecord, weight: WeightTensor, metadata: Metadata, level: Level
) -> list[GgufTensor]:
    """Of one tensor: itself, or where the embedding is the output head too, both."""
    make = sixteen_bit if level == "target" or record.codec == "keep" else four_bit
    if place.name != EMBEDDING:
        return [make(place, package, record, weight)]
    embedding = sixteen_bit(place, package, record, weight)  # a draft's is exact, its output head is not
    is_tied, head = metadata.config.tie_word_embeddings, metadata.architecture.head
    if not is_tied or head == "embedding" or (make is sixteen_bit and head == "optional"):
        return [embedding]
    return [embedding, make(replace(place, name=HEAD), package, record, weight)]


def _notes(package: Package, metadata: Metadata, level: Level, skipped: list[str]) -> tuple[str, ...]:
    notes = []
    known = places(metadata.config, metadata.architecture)
    if level == "draft":
        of_draft = [record for record in package.manifest.tensors if record.codec == "mxfp4"]
        named = [(record, known.get(metadata.config.own_name(record.name) or "")) for record in of_draft]
        unaligned = [record.name for record, place in named if place and record.shape[-1] % 32]
        turned = [record.name for record, place in named if place and place.is_transposed]
        if unaligned:
            notes.append(
                f"{len(unaligned)} matrices, such as {unaligned[0]}, have in_features that are no multiple of 32, "
                "which GGUF's MXFP4 requires: their 4-bit values are stored as BF16, exactly."
            )
        if turned:
            notes.append(
                f"{len(turned)} matrices, such as {turned[0]}, are stored turned, so that GGUF's blocks lie across "
                "theirs: their 4-bit values are stored as BF16, exactly."
            )
        if metadata.architecture.head == "embedding" and any(place and place.name == EMBEDDING for _, place in named):
            notes.append(
                f"llama.cpp's {metadata.architecture.name} has no output head of its own: the draft's is the "
                "embedding in 16 bits."
            )
    if skipped:
        notes.append(f"left out {len(skipped)} tensors that llama.cpp does not have, such as {skipped[0]}.")
    return tuple(notes)


def _check_is_none_of_its_own(name: str | None, weight: WeightTensor, metadata: Metadata) -> None:
    """A tensor of this decoder that has no place would be missed; one of another tower, or a buffer, is not."""
    config = metadata.config
    roots = (f"{config.layer_prefix}.", f"{config.head}.")
    if name is None or not name.startswith(roots) or not name.endswith((".weight", ".bias")) or name.endswith(BUFFERS):
        return
    if config.mtp is not None and config.mtp.has(name):  # what predicts further tokens
        return
    if name == f"{config.head}.weight":  # of a model whose head is the embedding: older checkpoints hold both
        return
    raise ModelError(
        f"tensor {weight.name}: llama.cpp's {metadata.architecture.name} has no place for it in a model as config.json "
        "describes it; GGUF can hold this model only without it. Export with --to safetensors."
    )


def _check_kind(weight: WeightTensor, place: Place) -> None:
    """It may be of a type that GGUF does not have."""
    if weight.dtype not in ("BF16", "F16", "F32") or len(weight.shape) not in (1, 2) or 0 in weight.shape:
        raise ModelError(
            f"tensor {weight.name}: {weight.dtype} {list(weight.shape)}; a vector or matrix of BF16, F16 or F32 is "
            "required. Export with --to safetensors."
        )
    if place.is_transposed and len(weight.shape) != 2:
        raise ModelError(f"tensor {weight.name}: {list(weight.shape)}; a matrix is required. Convert the model again.")
