"""MXFP4 against ml_dtypes, gguf-py and compressed-tensors. What each covers stands in tests/oracles.py."""

from collections.abc import Iterator

import numpy as np
import oracles
import pytest

from mxconv.codecs.e2m1 import decode_e2m1, encode_e2m1, encode_e2m1_toward_zero
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4

TIES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
CHUNK = 1 << 20


def near_ties() -> np.ndarray:
    """Every tie and the three float32 values on either side, both signs."""
    bits = TIES.view(np.uint32)[:, None] + np.arange(-3, 4).astype(np.uint32)
    values = bits.ravel().view(np.float32)
    return np.concatenate([values, -values])


def scaled_chunks(num_chunks: int) -> Iterator[np.ndarray]:
    """Elements as a block would hold them, half random, half at and around ties, and any patterns."""
    rng = np.random.default_rng(1)
    edges = near_ties()
    for chunk in range(num_chunks):
        if chunk % 3 == 0:
            yield rng.uniform(-8, 8, CHUNK).astype(np.float32)
        elif chunk % 3 == 1:
            yield rng.choice(edges, CHUNK)
        else:
            patterns = rng.integers(0, 1 << 32, CHUNK, np.uint32).view(np.float32)
            yield np.where(np.isnan(patterns), np.float32(0), patterns)


def test_e2m1_equals_ml_dtypes_on_three_million_elements() -> None:
    for values in scaled_chunks(3):
        assert (encode_e2m1(values) == oracles.e2m1_by_ml_dtypes(values)).all()


def test_mxfp4_blocks_equal_ml_dtypes_on_ten_million_weights_of_every_magnitude() -> None:
    """Blocks are scaled by powers of two from the subnormals up, so scales cover their range and clamp below."""
    rng = np.random.default_rng(2)
    edges = near_ties()
    num_compared, scales_seen = 0, set()
    for chunk in range(10):
        rows = (rng.uniform(-8, 8, CHUNK) if chunk % 2 else rng.choice(edges, CHUNK)).astype(np.float32)
        blocks = np.ldexp(rows.reshape(-1, 32), rng.integers(-140, 126, (CHUNK // 32, 1)).astype(np.int32))
        codes, scales = quantize_mxfp4(blocks)
        scaled = np.ldexp(blocks, 127 - scales.astype(np.int32))
        assert (codes == oracles.e2m1_by_ml_dtypes(scaled))[blocks.any(axis=1)].all()
        scales_seen.update(np.unique(scales).tolist())
        num_compared += blocks.size
    assert num_compared >= 10_000_000
    assert scales_seen == set(range(253))


def test_codes_and_scales_decode_as_ml_dtypes_has_them() -> None:
    codes, scales = np.arange(16, dtype=np.uint8), np.arange(256, dtype=np.uint8)
    assert decode_e2m1(codes).tobytes() == oracles.e2m1_values_by_ml_dtypes(codes).tobytes()
    np.testing.assert_array_equal(decode_e8m0(scales), oracles.e8m0_values_by_ml_dtypes(scales))


def weights() -> Iterator[np.ndarray]:
    """(rows, 1024) float32 from BF16 and FP16 weights: trained-like, tie-laden, and any finite pattern."""
    rng = np.random.default_rng(3)
    for kind in (BF16, FP16):
        for sigma in (0.003, 0.02, 0.3):
            yield kind.decode(kind.encode(rng.normal(0, sigma, (96, 1024)).astype(np.float32)))
        edges = np.concatenate([kind.decode(kind.encode(near_ties())), [np.float32(4)]])
        yield np.ldexp(rng.choice(edges, (96, 1024)), rng.integers(-10, 10, (96, 1)).astype(np.int32))
        patterns = rng.integers(0, 1 << 16, (96, 1024), np.uint16)
        yield kind.decode(np.where(patterns & 0x7FFF >= kind.infinity, np.uint16(0), patterns))
        narrow = rng.integers(0, kind.infinity, (96, 32), np.uint16).astype(np.int64)[:, :, None]
        narrow[:2] = -450  # some at the very bottom: subnormals and BF16 below 2^-125
        near = np.clip(narrow + rng.integers(-600, 600, (96, 32, 32)), 0, kind.infinity - 1)
        yield kind.decode(near.reshape(96, 1024).astype(np.uint16))  # blocks of alike exponents, at every scale
    zeros = np.zeros((2, 1024), np.float32)
    zeros[1] = -0.0
    yield zeros


def test_the_ggml_rule_equals_gguf() -> None:
    num_compared = num_left_out = 0
    for values in weights():
        codes, scales = quantize_mxfp4(values, "ggml")
        their_codes, their_scales, their_values = oracles.mxfp4_by_gguf(values)
        sound = oracles.gguf_scale_is_sound(values)
        each = np.repeat(sound, 32, axis=1)
        amax = np.abs(values.reshape(len(values), -1, 32)).max(axis=-1)
        assert (amax[~sound] < 2.0**-125).all()  # the documented exception, and no other, in 16-bit weights
        assert (scales == their_scales)[sound].all()
        assert (codes == their_codes)[each].all()
        assert (dequantize_mxfp4(codes, scales) == their_values)[each].all()
        num_compared += int(each.sum())
        num_left_out += int((~each).sum())
    assert num_compared > 1_000_000
    assert 0 < num_left_out < 100_000


def test_gguf_wraps_its_scale_below_2_to_the_minus_125_where_ours_clamps() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = 2.0**-126
    assert quantize_mxfp4(values, "ggml")[1].tolist() == [[0]]
    # -1 as an unsigned byte: C leaves it open, x86 wraps and aarch64 saturates
    assert oracles.mxfp4_by_gguf(values)[1].tolist() in ([[255]], [[0]])


def test_gguf_rounds_its_logarithm_up_just_below_a_power_of_two_of_float32() -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = np.nextafter(np.float32(8), np.float32(0))
    assert quantize_mxfp4(values, "ggml")[1].tolist() == [[127]]
    assert oracles.mxfp4_by_gguf(values)[1].tolist() == [[128]]
    assert not oracles.gguf_scale_is_sound(values).any()


def test_the_even_rule_equals_compressed_tensors() -> None:
    pytest.importorskip("compressed_tensors")
    num_compared = num_left_out = 0
    for values in weights():
        codes, scales = quantize_mxfp4(values, "even")
        their_codes, their_scales = oracles.mxfp4_by_compressed_tensors(values)
        sound_blocks, sound = oracles.compressed_tensors_is_sound(values, scales)
        assert (scales == their_scales)[sound_blocks].all()
        assert (codes == their_codes)[sound].all()
        num_compared += int(sound.sum())
        num_left_out += int((~sound).sum())
    assert num_compared > 1_000_000
    assert 0 < num_left_out < 50_000


def test_compressed_tensors_drops_the_sign_of_negative_zero_where_ours_keeps_it() -> None:
    pytest.importorskip("compressed_tensors")
    values = np.full((1, 32), 4, np.float32)
    values[0, :3] = [-0.0, -0.1, 0.0]
    assert quantize_mxfp4(values, "even")[0][0, :3].tolist() == [8, 8, 0]
    assert oracles.mxfp4_by_compressed_tensors(values)[0][0, :3].tolist() == [0, 8, 0]


def test_compressed_tensors_overflows_from_1_75_times_2_to_the_127_where_ours_saturates() -> None:
    pytest.importorskip("compressed_tensors")
    values = np.full((1, 32), 1.75 * 2.0**127, np.float32)
    assert quantize_mxfp4(values, "even")[1].tolist() == [[252]]
    assert oracles.mxfp4_by_compressed_tensors(values)[1].tolist() == [[127]]


def test_the_libraries_break_ties_as_the_style_table_says() -> None:
    blocks = np.zeros((1, 32), np.float32)
    blocks[0, :8] = [*TIES, 4]
    assert decode_e2m1(encode_e2m1(TIES)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert decode_e2m1(oracles.e2m1_by_ml_dtypes(TIES)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert decode_e2m1(encode_e2m1_toward_zero(TIES)).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4]
    assert decode_e2m1(oracles.mxfp4_by_gguf(blocks)[0][0, :7]).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4]
