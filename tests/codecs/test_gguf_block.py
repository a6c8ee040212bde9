"""GGUF's MXFP4 block, against the gguf library."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from mxconv.codecs.gguf_block import pack_blocks, unpack_blocks
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.errors import CodecError


def test_the_library_reads_every_code_at_every_place_under_every_scale() -> None:
    codes = (np.arange(253 * 32) * 7 % 16).astype(np.uint8).reshape(253, 32)
    codes[:16] = np.arange(16, dtype=np.uint8)[:, None]
    scales = np.arange(253, dtype=np.uint8)[:, None]  # 253 takes a 6 beyond float32
    blocks = pack_blocks(codes, scales)
    assert blocks.shape == (253, 17)
    found = quants.dequantize(blocks, GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(found, dequantize_mxfp4(codes, scales))


def test_bytes_lie_as_the_format_says() -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(1, 64) % 16
    blocks = pack_blocks(codes, np.array([[127, 3]], np.uint8))
    half = [j | j << 4 for j in range(16)]  # elements j and j + 16 are both j here
    assert blocks.tolist() == [[127, *half, 3, *half]]


def test_unpacking_what_the_library_packed_gives_its_values() -> None:
    values = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    packed = quants.quantize(values, GGMLQuantizationType.MXFP4)
    codes, scales = unpack_blocks(packed)
    assert codes.shape == (5, 96) and scales.shape == (5, 3)
    np.testing.assert_array_equal(
        dequantize_mxfp4(codes, scales), quants.dequantize(packed, GGMLQuantizationType.MXFP4)
    )
    np.testing.assert_array_equal(pack_blocks(codes, scales), packed)


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(CodecError, match=r"codes \(1, 33\) with scales \(1, 1\); one scale per 32 columns is required"):
        pack_blocks(np.zeros((1, 33), np.uint8), np.zeros((1, 1), np.uint8))
    with pytest.raises(CodecError, match="rows of 18 bytes; a multiple of 17 is required"):
        unpack_blocks(np.zeros((1, 18), np.uint8))
