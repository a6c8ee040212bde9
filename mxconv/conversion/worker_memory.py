"""The memory that a worker needs, and how large its slices may be so that it stays within what it may have."""

from collections.abc import Sequence
from dataclasses import replace

from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.plan import MAX_SLICE_WEIGHTS, TensorPlan
from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY, choose_kernel

# measured, and rounded up: docs/scale.md, "Memory"
PROCESS_BYTES = 150_000_000  # libraries, Ray's and the codecs' tables
WEIGHT_BYTES = 16  # of one weight of a slice: patterns, codes, what lies between
NUMPY_PROCESS_BYTES = 210_000_000  # fits of tables take more there
NUMPY_WEIGHT_BYTES = 64
STORE_BYTES = 120_000_000  # of a store: its client, the block that was read last, and what waits to be sent
COPIED_BYTES = 4  # of a tensor that is copied, for each weight that a slice may have


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
    if plan.codec != "keep" and plan.carried is None:
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
