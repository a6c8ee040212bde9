"""GGUF's blocks of MXFP4 and Q8_0, against the gguf library."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8
from mxconv.codecs.vnni8 import pack_quads, pack_scales
from mxconv.errors import CodecError
from mxconv.gguf.gguf_block import fits_q8_0, pack_blocks, pack_q8_0, unpack_blocks


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


def test_q8_0_has_every_mxint8_element_under_every_scale_that_fits() -> None:
    scales = np.concatenate([[0], np.arange(109, 149)]).astype(np.uint8)[:, None].repeat(8, axis=1)
    elements = np.zeros((len(scales), 256), np.int8)
    elements[1:, :255] = np.arange(-127, 128, dtype=np.int8)
    blocks = pack_q8_0(elements, scales)
    assert blocks.shape == (41, 8 * 34)
    found = quants.dequantize(blocks, GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(found, dequantize_mxint8(elements, scales))
    with pytest.raises(CodecError, match=r"^elements \(41, 256\) with scales \(41, 7\); one scale per 32 columns"):
        pack_q8_0(elements, scales[:, 1:])


@pytest.mark.parametrize(
    ("scale", "element", "fits"),
    [(109, 1, True), (148, 1, True), (108, 1, False), (149, 1, False), (0, 0, True), (0, 1, False), (254, 0, False)],
)
def test_a_scale_that_binary16_has_not_does_not_fit(scale: int, element: int, fits: bool) -> None:
    elements, scales = np.zeros((16, 64), np.int8), np.full((16, 2), 127, np.uint8)
    elements[5, 40], scales[5, 1] = element, scale
    assert fits_q8_0(pack_quads(elements), pack_scales(scales)) is fits


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(CodecError, match=r"codes \(1, 33\) with scales \(1, 1\); one scale per 32 columns is required"):
        pack_blocks(np.zeros((1, 33), np.uint8), np.zeros((1, 1), np.uint8))
    with pytest.raises(CodecError, match="rows of 18 bytes; a multiple of 17 is required"):
        unpack_blocks(np.zeros((1, 18), np.uint8))
