"""MXFP4 by its rules, and beside ml_dtypes, gguf-py and compressed-tensors; tests/oracles.py says what each covers."""

from collections.abc import Iterator
from typing import get_args

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mxconv.codecs.e2m1 import VALUES, encode_e2m1
from mxconv.codecs.float16 import BF16, FP16
from mxconv.codecs.mxfp4 import SCALE_RULES, ScaleRule, dequantize_mxfp4, quantize_mxfp4
from mxconv.errors import CodecError

every_rule = pytest.mark.parametrize("rule", SCALE_RULES)
matrices = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=70),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def amax_of(values: np.ndarray) -> np.ndarray:
    padded = np.zeros((len(values), -(-values.shape[1] // 32) * 32), np.float64)
    padded[:, : values.shape[1]] = values
    return np.abs(padded).reshape(len(values), -1, 32).max(axis=-1)


@every_rule
@settings(max_examples=20)
@given(values=matrices)
def test_the_error_is_bounded_by_the_widest_gap_or_by_saturation(rule: ScaleRule, values: np.ndarray) -> None:
    codes, scales = quantize_mxfp4(values, rule)
    errors = np.abs(dequantize_mxfp4(codes, scales)[:, : values.shape[1]].astype(np.float64) - values)
    units = 2.0 ** (np.repeat(scales, 32, axis=1)[:, : values.shape[1]].astype(np.float64) - 127)
    # gaps are at most 2, so 1 to the nearest; floor scales let 8 saturate to 6, `even` 7, `ceil` nothing
    bound = np.where((units < 2.0**125) & (rule in ("ceil", "even")), 1, 2)
    assert (errors <= units * bound).all()


@every_rule
@settings(max_examples=20)
@given(values=matrices)
def test_scales_follow_their_rule(rule: ScaleRule, values: np.ndarray) -> None:
    amax = amax_of(values)
    scales = quantize_mxfp4(values, rule)[1].astype(int) - 127
    safe = np.where(amax > 0, amax, 1)
    floor = np.frexp(safe)[1] - 3
    expected = {
        "ocp": [floor],
        "ggml": [floor],
        "even": [floor + (safe >= 1.75 * 2.0 ** (floor + 2))],
        "ceil": [floor + (safe > 6 * 2.0**floor)],
        "mse": [floor, floor + 1],
    }[rule]
    matches = [scales == np.where(amax > 0, np.clip(each, -127, 125), -127) for each in expected]
    assert np.logical_or.reduce(matches).all()


@given(values=matrices)
def test_mse_is_never_worse_than_ocp(values: np.ndarray) -> None:
    def squared_errors(rule: ScaleRule) -> np.ndarray:
        restored = dequantize_mxfp4(*quantize_mxfp4(values, rule))[:, : values.shape[1]].astype(np.float64)
        difference = np.zeros((len(values), -(-values.shape[1] // 32) * 32))
        difference[:, : values.shape[1]] = restored - values
        largest = amax_of(values)[:, :, None]
        return ((difference.reshape(len(values), -1, 32) / np.where(largest > 0, largest, 1)) ** 2).sum(axis=-1)

    assert (squared_errors("mse") <= squared_errors("ocp") * (1 + 1e-12)).all()


@every_rule
def test_a_block_of_zeros_is_all_zero_bytes_whatever_their_signs(rule: ScaleRule) -> None:
    values = np.zeros((2, 64), np.float32)
    values[0, :32:2] = -0.0
    values[1, 40] = 1
    codes, scales = quantize_mxfp4(values, rule)
    assert not codes[0].any()
    assert scales[0].tolist() == [0, 0]
    assert scales[1, 1] > 0


@every_rule
def test_the_largest_weights_stay_finite(rule: ScaleRule) -> None:
    values = np.full((1, 32), np.finfo(np.float32).max)
    codes, scales = quantize_mxfp4(values, rule)
    assert scales.tolist() == [[125 + 127]]
    assert dequantize_mxfp4(codes, scales).tolist() == [[6 * 2.0**125] * 32]


def test_all_codes_under_all_scales_decode_exactly() -> None:
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (255, 1))
    scales = np.arange(255, dtype=np.uint8)[:, None]
    values = dequantize_mxfp4(codes, scales)
    expected = VALUES[codes].astype(np.float64) * 2.0 ** (scales.astype(np.float64) - 127)
    representable = np.abs(expected) < 2.0**128
    assert (values.astype(np.float64) == expected)[representable].all()
    assert np.isinf(values[~representable]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_an_error_that_names_the_first_index(value: float) -> None:
    values = np.zeros((4, 50), np.float32)
    values[2, 33] = values[3, 0] = value
    with pytest.raises(CodecError, match=r"^value at index \(2, 33\) is -?(nan|inf); MX formats need finite values\.$"):
        quantize_mxfp4(values)


def test_an_unknown_scale_rule_is_an_error_that_lists_the_known_ones() -> None:
    message = r"^scale rule 'floor': unknown; one of ocp, even, ceil, ggml, mse is required\.$"
    with pytest.raises(CodecError, match=message):
        quantize_mxfp4(np.zeros((1, 32), np.float32), "floor")  # type: ignore[arg-type]
    assert get_args(ScaleRule) == SCALE_RULES


@pytest.mark.parametrize(("columns", "num_scales"), [(64, 1), (33, 1), (32, 2)])
def test_codes_and_scales_that_do_not_belong_together_are_an_error(columns: int, num_scales: int) -> None:
    message = rf"^codes \(2, {columns}\) with scales \(2, {num_scales}\); one scale per 32 columns is required\.$"
    with pytest.raises(CodecError, match=message):
        dequantize_mxfp4(np.zeros((2, columns), np.uint8), np.zeros((2, num_scales), np.uint8))


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
