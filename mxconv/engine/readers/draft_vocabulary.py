"""Which of the target's tokens a draft head knows that has a vocabulary of its own."""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from mxconv.arrays import I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import ModelError


def target_tokens(tensors: Mapping[str, SourceTensor], draft_size: int, target_size: int, name: str) -> I64:
    """(draft_size,) int64: the target's id of each token of the head.

    Args:
        tensors: of the head. d2t, (draft_size,), has the distance from an id of the head to that of the target; t2d,
            (target_size,), says which tokens of the target the head knows. Without either both ids are the same.
        draft_size: tokens of the head.
        target_size: of the target.
        name: of the head, for messages.

    Raises:
        ModelError: they are missing or of another kind, lead outside the target's vocabulary or to one token twice,
            or contradict each other.
    """
    ours = np.arange(draft_size, dtype=np.int64)
    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None:
        if draft_size != target_size:
            _refuse(name, "tensor d2t is missing", f"with {draft_size} of {target_size} tokens it is")
        return ours
    if d2t.dtype not in ("I64", "I32") or d2t.shape != (draft_size,):
        _refuse(name, f"tensor d2t is {d2t.dtype} {list(d2t.shape)}", f"I64 [{draft_size}] is")
    with np.errstate(over="ignore"):
        tokens: I64 = ours + d2t.array().astype(np.int64)
    outside = tokens[(tokens < 0) | (tokens >= target_size)]
    if len(outside):
        _refuse(name, f"tensor d2t leads to token {outside[0]}", f"0 to {target_size - 1} is")
    if len(np.unique(tokens)) < draft_size:
        _refuse(name, "tensor d2t leads to one token twice", "a token each is")
    if t2d is not None:
        if t2d.dtype != "BOOL" or t2d.shape != (target_size,):
            _refuse(name, f"tensor t2d is {t2d.dtype} {list(t2d.shape)}", f"BOOL [{target_size}] is")
        if not np.array_equal(np.flatnonzero(t2d.array()), np.sort(tokens)):
            _refuse(name, "tensor t2d marks other tokens than d2t leads to", "the same are")
    return tokens


def _refuse(name: str, found: str, required: str) -> NoReturn:
    raise ModelError(f"{name}: {found}; {required} required. Take the file that belongs to the head.")
