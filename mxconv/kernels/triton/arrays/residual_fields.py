"""The bits of residuals beyond eight, as a GPU holds them: column beside column in place of plane above plane.

A lane has P bytes either way. As a little-endian number its lower half holds the P bits of columns 0, 2, 4, 6, its
upper half those of columns 1, 3, 5, 7: two columns are a shift and a mask away, however many planes there are.
"""

import torch
import triton
import triton.language as tl

LANES_AT_A_TIME = 1 << 20  # so that what is made on the way stays below 64 MB


def fields_of(planes: torch.Tensor) -> torch.Tensor:
    """(T, C, P, 16) uint8 bit planes, as `residual_high` in the file, to fields in as many bytes."""
    fields = torch.empty_like(planes)
    row_tiles, column_tiles, num_planes, _ = planes.shape
    step = max(LANES_AT_A_TIME // (16 * column_tiles), 1)
    for first in range(0, row_tiles if num_planes else 0, step):
        some = planes[first : first + step].long()
        lanes = torch.zeros_like(some[:, :, 0])
        for plane in range(num_planes):
            for column in range(8):
                place = num_planes * (column // 2 + column % 2 * 4) + plane
                lanes |= (some[:, :, plane] >> column & 1) << place
        for byte in range(num_planes):
            fields[first : first + step, :, byte] = lanes >> 8 * byte & 255
    return fields


@triton.jit
def lane_fields(fields, place, is_there, NUM_PLANES: tl.constexpr):
    """The fields of lanes: int32, those of columns 0, 2, 4, 6 in the low half, of 1, 3, 5, 7 in the high half.

    Args:
        fields: pointer to the first byte of the program's rows.
        place: (tiles, ROWS), which byte is a lane's first; its others follow 16 bytes apart.
        is_there: whether there is such a lane.
        NUM_PLANES: P, 1 to 4.
    """
    lanes = tl.load(fields + place, mask=is_there, other=0).to(tl.int32)
    for byte in tl.static_range(1, NUM_PLANES):
        lanes |= tl.load(fields + place + 16 * byte, mask=is_there, other=0).to(tl.int32) << (8 * byte)
    half: tl.constexpr = (1 << (4 * NUM_PLANES)) - 1
    return (lanes & half) | (((lanes >> (4 * NUM_PLANES)) & half) << 16)


@triton.jit
def high_residuals(fields, PAIR: tl.constexpr, NUM_PLANES: tl.constexpr):
    """Bits 8 and up of the residuals of columns 2 * PAIR (low half) and 2 * PAIR + 1."""
    place: tl.constexpr = NUM_PLANES * PAIR
    mask: tl.constexpr = ((1 << NUM_PLANES) - 1) * 0x1000100
    return (fields >> (place - 8) if place > 8 else fields << (8 - place)) & mask
