"""A model's description against the tensors that there are: their names, the output head, and what is missing.

    with open_checkpoint("model") as checkpoint:
        config = checkpoint_config(checkpoint)
        check_whole(config, held_tensors(checkpoint), checkpoint.id)

A checkpoint may name its tensors as another class of transformers or a wrapper of torch left them, and what config.json
says of its output head may not hold. Both are decided here, once, for all who read, convert, prove or export a model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe
from mxconv.arch.fields import Fields
from mxconv.arch.required_tensors import Shape, required_tensors
from mxconv.checkpoint.stacked import ENDINGS
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import ModelError, MxconvError

if TYPE_CHECKING:
    from mxconv.checkpoint.source import Checkpoint

COMPARED_ROWS = 1024  # at a time
MATRIX_DTYPES, VECTOR_DTYPES = ("BF16", "F16"), ("BF16", "F16", "F32")
CLASSES_AROUND = ("", "model.")  # how names begin that a class around the model has saved
# keys by which a config.json is a draft head's, which has layers of a family and is no model of it
DRAFT_HEAD_KEYS = ("draft_vocab_size", "dflash_config", "speculators_config", "speculators_model_type")
ROUND_IT = "Give --dtype bf16 or --dtype fp16 to round it; the choice is recorded."
REMEDY = "Download the whole model, or take the config.json that belongs to these tensors."


@dataclass(frozen=True)
class HeldTensor:
    """What is known of a tensor without reading it."""

    shape: Shape
    dtype: str  # as safetensors names it, after any cast; of FP8 with block scales BF16, which its readers make of it


Tensors = Mapping[str, HeldTensor]


def is_described(values: Mapping[str, object] | None) -> bool:
    """Return whether a config.json, parsed, describes a whole model of a family that mxconv runs."""
    if values is None or any(key in values for key in DRAFT_HEAD_KEYS):
        return False
    try:
        describe(Fields(values, "config.json"))
    except MxconvError:
        return False
    return True


def checkpoint_config(checkpoint: "Checkpoint") -> ModelConfig:
    """Return the description of a checkpoint's model, fitted to its tensors. Raises ModelError where there is none."""
    config, tensors = describe(Fields(checkpoint.config or {}, "config.json")), checkpoint.tensors
    return fitted(config, held_tensors(checkpoint), lambda one, other: _are_equal(tensors[one], tensors[other]))


def held_tensors(checkpoint: "Checkpoint") -> dict[str, HeldTensor]:
    """Return what is known of a checkpoint's tensors, by name."""
    from mxconv.checkpoint.fp8_matrix import fp8_matrices  # late: packages that are decoded need none of these

    fp8 = fp8_matrices(checkpoint.tensors, checkpoint.config)
    return {
        name: HeldTensor(tensor.shape, "BF16" if name in fp8 else tensor.dtype)
        for name, tensor in checkpoint.tensors.items()
    }


def _are_equal(one: SourceTensor, other: SourceTensor) -> bool:
    """Whether two matrices have the same bits; reading ends at the first slice that differs."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    for start in range(0, one.shape[0], COMPARED_ROWS):
        stop = min(start + COMPARED_ROWS, one.shape[0])
        ours, theirs = (np.ascontiguousarray(tensor.rows(start, stop)).view(np.uint8) for tensor in (one, other))
        if not np.array_equal(ours, theirs):
            return False
        one.release(start, stop)
        other.release(start, stop)
    return True


def fitted(config: ModelConfig, tensors: Tensors, are_equal: Callable[[str, str], bool]) -> ModelConfig:
    """Return the description with the names and the output head that the tensors have.

    A head that is there is the model's own, unless config.json calls it tied and it equals the embedding bit for bit;
    without a head the embedding is it, and without an embedding the head.

    Args:
        config: what config.json says.
        tensors: by the checkpoint's names.
        are_equal: whether two of them have the same bits; asked once at most.
    """
    config = _with_names(config, tensors)
    stored = {own: name for name in tensors if (own := config.own_name(name)) is not None}
    head = f"{config.head}.weight"
    if head not in stored:
        return replace(config, tie_word_embeddings=True)
    if config.embedding not in stored:
        renamed = (*config.renamed, (head, config.embedding))
        return replace(config, tie_word_embeddings=True, renamed=renamed)
    is_tied = config.tie_word_embeddings and are_equal(stored[head], stored[config.embedding])
    return replace(config, tie_word_embeddings=is_tied)


def _with_names(config: ModelConfig, tensors: Tensors) -> ModelConfig:
    """The description under which most tensors that the model requires are there; of equal ones the plainest."""
    base = config.embedding.partition(".")[0] + "."
    candidates = [
        replace(config, wrapper=wrapper, lacks=lacks)
        for lacks in ("", base if config.layer_prefix.startswith(base) else "")
        for wrapper in CLASSES_AROUND
    ]
    best, most = config, -1
    for candidate in candidates:
        names = {own for name in tensors if (own := candidate.own_name(name)) is not None}
        required = required_tensors(candidate, names)
        found = len(required.keys() & names)
        if found > most:
            best, most = candidate, found
        if found == len(required):
            break
    return best


def check_whole(config: ModelConfig, tensors: Tensors, label: str) -> None:
    """Raise ModelError for the first tensor that the model requires and that is not there as its readers take it.

    Args:
        config: the description, fitted to the tensors.
        tensors: by the checkpoint's names.
        label: what messages call the model.
    """
    for _, fault in faults(config, tensors):
        raise ModelError(f"{label}: {fault}")


def faults(config: ModelConfig, tensors: Tensors) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that the model requires and that is not there as its readers take it, and why."""
    stored = {own: name for name in tensors if (own := config.own_name(name)) is not None}
    begins: set[tuple[str, str]] = set()
    for own, shape in required_tensors(config, stored).items():
        if own not in stored:
            begins = begins or set(_beginnings(stored))
        name = stored.get(own) or _spelled(own, begins)
        needed = f"is required of the {config.model_type} model that config.json describes. {REMEDY}"
        if own not in stored:
            yield name, f"tensor {name} is missing; its shape {list(shape)} {needed}"
            continue
        found = tensors[name]
        is_stack = len(shape) == 3 and shape[1] != 1
        allowed = MATRIX_DTYPES if len(shape) == 2 or is_stack else VECTOR_DTYPES
        if found.shape != shape and not (is_stack and found.shape == (shape[0], shape[2], shape[1])):
            yield name, f"tensor {name} has shape {list(found.shape)}; {list(shape)} {needed}"
        elif found.dtype not in allowed and not (found.dtype == "U8" and own.endswith(tuple(ENDINGS.values()))):
            remedy = ROUND_IT if found.dtype == "F32" else "Export the model in 16 bits."
            yield name, f"tensor {name} has dtype {found.dtype}; {' or '.join(allowed)} is required of it. {remedy}"


def _spelled(own: str, begins: Iterable[tuple[str, str]]) -> str:
    """The name that this checkpoint would have for a tensor that is missing, after those that it has."""
    fitting = [pair for pair in begins if own.startswith(pair[0])]
    known, name = max(fitting, key=lambda pair: len(pair[0]), default=("", ""))
    return name + own.removeprefix(known)


def _beginnings(stored: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """How decoder's names begin where those in the checkpoint begin otherwise, and how the latter do."""
    for known, name in stored.items():
        ours, theirs = known.split("."), name.split(".")
        while ours and theirs and ours[-1] == theirs[-1]:
            del ours[-1], theirs[-1]
        yield "".join(f"{word}." for word in ours), "".join(f"{word}." for word in theirs)
