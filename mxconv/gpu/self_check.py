"""Whether the kernels in fragment order compute the right bits on a device: tried once, before they are used there.

They are compiled by whatever Triton is installed, for a GPU that nobody may have tried. So a matrix that holds every
pattern of BF16, some of them as escapes, is rebuilt and multiplied by tokens of one one, which gives its columns.
"""

import functools
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.bsfp.packing import decode_bsfp_draft, encode_bsfp, escape_offsets
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.gpu.device_arrays import upload
from mxconv.gpu.fragment_product import fragment_patterns, fragment_product
from mxconv.gpu.fragments import FragmentArrays, FragmentDraft, draft_fragments, fragments_of, rows_of_patterns
from mxconv.gpu.launch import MAX_TOKENS, RoutedPairs, on
from mxconv.package.stored import StoredBsfp

SHAPE = (64, 1024)  # 65,536 weights, which several programs along the columns multiply
MOST_SCALE = 252  # of MXFP4: its levels times larger ones are infinite


@functools.cache
def kernels_work(device: torch.device, dtype: torch.dtype = torch.bfloat16, num_planes: int = 0) -> bool:
    """Whether kernels multiply matrices on a device, or torch's own operations do; a warning says why, once.

    A CPU has none.

    Args:
        device: with the matrices.
        dtype: of exact ones.
        num_planes: their residual bits beyond eight.
    """
    if device.type != "cuda":
        return False
    try:
        with on(device):
            found = wrong_bits(device, dtype=dtype, num_planes=num_planes)
    except Exception as error:  # a compiler or a driver may refuse in many ways, and torch can do the work
        found = f"{type(error).__name__}: {error}"
    if found is not None:
        warnings.warn(
            f"{torch.cuda.get_device_name(device)}: the kernels are not used, {found}; exact bits are required. torch "
            "decodes the weights at every product instead, which is slow. Please report this as a defect.",
            stacklevel=2,
        )
    return found is None


def wrong_bits(
    device: torch.device, every: int = 1, dtype: torch.dtype = torch.bfloat16, num_planes: int = 0
) -> str | None:
    """What the kernels compute wrongly on a device; None if every bit is right.

    Args:
        device: with the kernels.
        every: which of the products is tried.
        dtype: of exact weights. 4 bits are tried with those of BF16 without planes.
        num_planes: their residual bits beyond eight.
    """
    stored, patterns = _every_pattern(dtype, num_planes)
    exact, draft = fragments_of(stored, device, {})
    values = stored.table.float_format.decode(patterns)
    cases: list[tuple[str, FragmentArrays | FragmentDraft, F32]] = [("product", exact, values)]
    if (dtype, num_planes) == (torch.bfloat16, 0):
        draft_values = decode_bsfp_draft(stored.packed, stored.table, SHAPE)
        cases += [("draft product", draft, draft_values), ("MXFP4 product", *_every_block(device))]
    if found := _differs("weight", fragment_patterns(exact, 0, SHAPE[0]), patterns.view(np.int16)):
        return found
    rows = SHAPE[0] - 2  # the last ones have infinities and NaNs, which spoil the other columns of their row
    ones = torch.eye(SHAPE[1], dtype=torch.bfloat16, device=device)
    for kind, arrays, expected in cases:
        if isinstance(arrays, FragmentDraft):
            weights = rows_of_patterns(arrays, fragment_patterns(arrays, 0, SHAPE[0]), 0)
            if found := _differs(kind.replace("product", "weight"), weights, expected):
                return found
        else:
            ones = ones.to(dtype)
        for tokens in (*ones.split(int(MAX_TOKENS.value))[::every], *ones[:40].split(5)[::every]):
            column = int(tokens[0].argmax())
            weights = fragment_product(arrays, tokens).T[:rows]
            if found := _differs(kind, weights, expected[:rows, column : column + len(tokens)], column):
                return found
        twice: list[Any] = [arrays, arrays]
        stack = type(arrays).stacked(twice)
        for tokens in (*ones.split(int(MAX_TOKENS.value))[:: 8 * every], ones[:5]):
            column = int(tokens[0].argmax())
            routed = RoutedPairs.of(torch.arange(len(tokens), device=device)[:, None] % 2, num_experts=2)
            weights = fragment_product(stack, tokens, routed).T[:rows]
            wanted = expected[:rows, column : column + len(tokens)]
            if found := _differs(f"{kind} of experts", weights, wanted, column):
                return found
    return None


def _differs(kind: str, found: torch.Tensor, expected: NDArray[Any], first_column: int = 0) -> str | None:
    on_host = found.cpu().numpy()
    is_number = (on_host == on_host) | (expected == expected)  # one NaN is as good as another
    wrong = np.argwhere((on_host != expected) & is_number)
    if not len(wrong):
        return None
    row, column = wrong[0]
    place = f"row {row}, column {first_column + column}"
    return f"since {kind} {on_host[row, column]} at {place} is no {expected[row, column]}"


def _every_block(device: torch.device) -> tuple[FragmentDraft, F32]:
    """A matrix of MXFP4 whose blocks have every scale, and every level under each; the largest lie in the last row."""
    random = np.random.default_rng(0)
    scales = np.concatenate([random.permutation(np.resize(np.arange(MOST_SCALE + 1), 2016)), np.arange(224, 256)])
    scales = scales.astype(np.uint8).reshape(SHAPE[0], -1)
    codes = random.permuted(np.tile(np.arange(16, dtype=np.uint8), (scales.size, 2)), axis=1).reshape(SHAPE)
    nibbles, packed = upload(pack_nibbles(codes), device), upload(pack_scales(scales), device)
    return draft_fragments(SHAPE, nibbles, packed, VALUES[:8]), dequantize_mxfp4(codes, scales)


def _every_pattern(dtype: torch.dtype, num_planes: int) -> tuple[StoredBsfp, U16]:
    """A matrix of all patterns in a table with row shifts; those that are no numbers lie in the last rows."""
    float_format, first = (BF16, 0x3A00) if dtype == torch.bfloat16 else (FP16, 0x1400)
    step = min((0x100 << num_planes) + 1, 0xA01)  # all within the finite patterns, whatever the row shift
    every = np.arange(1 << 16, dtype=np.uint16)
    is_finite = (every & float_format.infinity) != float_format.infinity
    shuffled = np.random.default_rng(0).permutation(every[is_finite])
    patterns: U16 = np.concatenate([shuffled, every[~is_finite]]).reshape(SHAPE)
    starts = tuple(tuple(first + 16 * phase + step * code for code in range(8)) for phase in range(8))
    table = SegmentTable(float_format, 8 + num_planes, starts, tuple(float(level) for level in range(1, 120, 15)))
    packed = encode_bsfp(patterns, table, np.arange(-32, 32, dtype=np.int8))
    return StoredBsfp(SHAPE, table, packed, escape_offsets(packed), 1.0), patterns
