"""The tensors of a level under GGUF's names, types and row order."""

from dataclasses import replace
from typing import Literal

from mxconv.codecs.mxfp4 import BLOCK
from mxconv.errors import ModelError
from mxconv.gguf.arrangement import block_columns
from mxconv.gguf.metadata import Metadata
from mxconv.gguf.parts import first_mixture
from mxconv.gguf.places import EMBEDDING, HEAD, TensorPlace, places
from mxconv.gguf.rotations import rope_tensors
from mxconv.interop.gguf_tensor import (
    OutputTensor,
    eight_bit,
    four_bit,
    four_bit_stack,
    made_tensor,
    sixteen_bit,
    sixteen_bit_stack,
    stacked,
)
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.report.open_weights import OpenWeights, WeightTensor

Level = Literal["target", "draft"]
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")


def level_tensors(
    package: Package, weights: OpenWeights, metadata: Metadata, level: Level
) -> tuple[list[OutputTensor], tuple[str, ...]]:
    """The tensors of a file, and what the user should know about them.

    Args:
        package: open.
        weights: the 16-bit weights, in the package or where it references them.
        metadata: names the architecture.
        level: the 16-bit target, or the MXFP4 draft.

    Raises:
        ModelError: a tensor has no place in llama.cpp's model.
    """
    tensors: list[OutputTensor] = []
    stacks: dict[str, dict[int, OutputTensor]] = {}
    skipped: list[str] = []
    records = {record.name: record for record in package.manifest.tensors}
    known = places(metadata.config, metadata.architecture)
    for weight in weights.tensors:
        record, name = records[weight.name], metadata.config.own_name(weight.name)
        found = () if name is None else known.get(name, ())
        if record.carried is not None and record.carried.part == "scales":
            continue  # written with the codes that they are of
        if not found:
            _check_is_none_of_its_own(name, weight, metadata)
            skipped.append(weight.name)
            continue
        for place in found:
            if record.stack is not None:
                is_exact = record.carried is None and (level == "target" or record.codec == "keep")
                make = sixteen_bit_stack if is_exact else four_bit_stack
                tensors.append(make(place, package, record, weight))
                continue
            made = _tensors(place, package, record, weight, metadata, level)
            if place.expert is None:
                tensors += made
            else:
                stacks.setdefault(place.name, {})[place.expert] = made[0]
    mixture = first_mixture(metadata.config)
    num_experts = 0 if mixture is None else mixture.routing.num_experts
    tensors += [stacked(name, experts, num_experts) for name, experts in stacks.items()]
    factors = rope_tensors(metadata.config, metadata.architecture, metadata.long_factors)
    tensors += [made_tensor(name, values) for name, values in factors.items()]
    return tensors, _notes(package, metadata, level, skipped)


def _tensors(
    place: TensorPlace, package: Package, record: TensorRecord, weight: WeightTensor, metadata: Metadata, level: Level
) -> list[OutputTensor]:
    """The tensors of one weight: itself, or where the embedding is the output head too, both."""
    make = four_bit if record.codec == "mxfp4" else eight_bit
    if level == "target" or record.codec == "keep":
        make = sixteen_bit
    if place.name != EMBEDDING:
        return [make(place, package, record, weight)]
    embedding = sixteen_bit(place, package, record, weight)  # a draft's is exact, its output head is not
    is_tied, head = metadata.config.tie_word_embeddings, metadata.architecture.head
    if not is_tied or head == "embedding" or (make is sixteen_bit and head == "optional"):
        return [embedding]
    return [embedding, make(replace(place, name=HEAD), package, record, weight)]


def _notes(package: Package, metadata: Metadata, level: Level, skipped: list[str]) -> tuple[str, ...]:
    """Notes for the user: matrices whose 4-bit values become BF16, and why; tensors that are left out."""
    notes, architecture = [], metadata.architecture
    if level == "draft":
        known = places(metadata.config, architecture)
        of_draft = [
            (record, place)
            for record in package.manifest.tensors
            if record.codec in ("mxfp4", "mxint8")
            for place in known.get(metadata.config.own_name(record.name) or "", ())[:1]
        ]
        of_codes = [(record, place) for record, place in of_draft if record.codec == "mxfp4"]
        reasons = {
            "have in_features that are no multiple of 32, which GGUF's MXFP4 requires": [
                record.name for record, _ in of_codes if _in_features(record) % BLOCK
            ],
            "are stored turned, so that GGUF's blocks lie across theirs": [
                record.name for record, place in of_codes if place.is_transposed
            ],
            "have heads in another order, of values that are no whole blocks of 32": [
                record.name for record, place in of_codes if place.columns and block_columns(place, BLOCK) is None
            ],
        }
        for reason, names in reasons.items():
            if names:
                notes.append(
                    f"{len(names)} matrices, such as {names[0]}, {reason}: their 4-bit values are stored as BF16, "
                    "exactly."
                )
        if architecture.head == "embedding" and any(place.name == EMBEDDING for _, place in of_draft):
            notes.append(
                f"llama.cpp's {architecture.name} has no output head of its own: the draft's is the embedding in 16 "
                "bits."
            )
    if skipped:
        notes.append(f"left out {len(skipped)} tensors that llama.cpp does not have, such as {skipped[0]}.")
    return tuple(notes)


def _check_is_none_of_its_own(name: str | None, weight: WeightTensor, metadata: Metadata) -> None:
    """Refuse a tensor of this decoder without a place; one of another tower, or a buffer, may be left out."""
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


def _in_features(record: TensorRecord) -> int:
    """in_features of a matrix, or of each in a stack."""
    return record.shape[-1] if record.stack is None else record.stack.matrix_shape[1]
