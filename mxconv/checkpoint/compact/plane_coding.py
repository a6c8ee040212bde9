"""Chunks of a file as zstd frames, and back: arrays in, bytes out.

The exponents of trained weights take some 2.6 bits of their 8; signs and mantissas are noise. So a 16-bit float is
rotated left by one bit, which puts the exponent into the high byte, and high and low bytes are coded apart. Beside a
base the difference of the bit patterns is coded instead: it is small where a fine-tune moved a weight by little.

Source: formats/compact.md.
"""

import sys
from collections.abc import Sequence

import numpy as np

from mxconv.arrays import U8
from mxconv.errors import CheckpointError, install_line

try:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
except ImportError as error:
    raise CheckpointError(
        "compact source: backports.zstd is not installed; compact sources are coded by it. " + install_line("compact")
    ) from error

# A hash table this small finds runs and nothing else: what other matches save is less than what they spoil of the
# Huffman codes, and they take four times as long.
_PARAMETERS = zstd.CompressionParameter
OPTIONS: dict[int, int] = {
    _PARAMETERS.compression_level: 1,
    _PARAMETERS.strategy: zstd.Strategy.fast,
    _PARAMETERS.hash_log: 6,
    _PARAMETERS.min_match: 7,
    _PARAMETERS.checksum_flag: 1,
}
MAX_WINDOW_LOG = 23  # 8 MiB, what RFC 8878 has every decoder support
BIAS = 128  # differences of -128 to 127 differ in the low byte alone

ZstdError = zstd.ZstdError


def encode_planes(stored: U8, num_planes: int, base: U8 | None) -> list[bytes]:
    """Code a chunk.

    Args:
        stored: its bytes in the file, little-endian.
        num_planes: 2 for 16-bit floats, 1 for bytes.
        base: as many bytes of the base's tensor.

    Returns:
        A zstd frame for each plane, the high one first.
    """
    if num_planes == 1:
        planes = [stored if base is None else stored - base]
    else:
        weights = stored.view("<u2")
        codes = (weights << 1) | (weights >> 15) if base is None else weights - base.view("<u2") + BIAS
        planes = [(codes >> 8).astype(np.uint8), codes.astype(np.uint8)]
    return [zstd.compress(np.ascontiguousarray(plane).data, options=OPTIONS) for plane in planes]


def decode_planes(frames: Sequence[memoryview], num_elements: int, base: U8 | None) -> U8:
    """Decode a chunk: the inverse of `encode_planes`; each frame must hold one byte an element.

    Raises:
        ZstdError: a frame is damaged.
        ValueError: a frame holds another number of bytes.
    """
    planes = [_decode_frame(frame, num_elements) for frame in frames]
    if len(planes) == 1:
        return planes[0] if base is None else planes[0] + base
    high, low = planes
    if base is None:
        codes = np.left_shift(high, 7, dtype="<u2")
        codes |= low >> 1
        codes |= np.left_shift(low, 15, dtype="<u2")
    else:
        codes = np.left_shift(high, 8, dtype="<u2")
        codes |= low
        codes += base.view("<u2")
        codes -= BIAS
    return codes.view(np.uint8)


def _decode_frame(frame: memoryview, num_bytes: int) -> U8:
    """The content of a frame; memory is bounded by `num_bytes`, whatever the frame claims."""
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
    content = decompressor.decompress(frame, num_bytes + 1)  # it ends before the frame does where it is not given more
    if len(content) != num_bytes or not decompressor.eof:
        raise ValueError(f"a frame holds {'more' if len(content) > num_bytes else len(content)} bytes")
    return np.frombuffer(content, np.uint8)


def frame_bytes(rest: memoryview) -> int:
    """The length of the frame with which these bytes begin. Raises ZstdError where none does."""
    return zstd.get_frame_size(rest)
