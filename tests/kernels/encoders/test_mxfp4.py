"""MXFP4 by the encoders of every implementation against the NumPy codec: the same bytes, for any weights."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from encoder_weights import SHAPES, VECTORS, both, matrices, same_bits, weights
from hypothesis import given

from mxconv.codecs.float16 import BF16, FloatFormat
from mxconv.codecs.mxfp4 import SCALE_RULES, NonFiniteError, dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.kernels import encoders

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
every_rule = pytest.mark.parametrize("rule", SCALE_RULES)


@cache
def every_block(kind: FloatFormat) -> np.ndarray:
    """Each finite pattern as the largest of its block, and each below largest ones all over the range: (n, 32)."""
    finite = np.arange(kind.infinity, dtype=np.uint16)
    signed = np.concatenate([finite, finite | 0x8000])
    alone = np.zeros((len(signed), 32), np.uint16)
    alone[:, 17] = signed
    alone[1:, 3] = signed[:-1]
    largest = [
        1,
        3,
        5,
        3 * kind.patterns_per_octave // 2,
        *range(0, kind.infinity, 5 * kind.patterns_per_octave // 4 + 1),
    ]
    blocks = [alone]
    for top in [*largest[1:], kind.infinity - 1]:
        below = finite[: top + 1][-12 * kind.patterns_per_octave :]
        below = np.concatenate([below, below | 0x8000])
        block = np.full((-(-len(below) // 31), 32), top, np.uint16)
        block[:, 1:] = np.resize(below, (len(block), 31))
        blocks.append(block)
    return np.concatenate(blocks)


@cache
def mxfp4_by_numpy(kind: FloatFormat, rule: Any, shape: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    patterns = every_block(kind) if shape is None else weights(kind, shape)
    codes, scales = quantize_mxfp4(kind.decode(patterns), rule)
    return pack_nibbles(pad(codes, 16, 1)), pack_scales(pad(scales, 16, 1))


@both
@every_rule
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mxfp4_is_that_of_numpy_at_the_edges_of_tiles(shape: tuple[int, int], rule: Any, kind: FloatFormat) -> None:
    found = encoders.encode_mxfp4(weights(kind, shape), kind, rule)
    assert all(map(same_bits, found, mxfp4_by_numpy(kind, rule, shape)))


@both
@every_rule
def test_mxfp4_of_every_finite_pattern_is_that_of_numpy(rule: Any, kind: FloatFormat) -> None:
    found = encoders.encode_mxfp4(every_block(kind), kind, rule)
    assert all(map(same_bits, found, mxfp4_by_numpy(kind, rule, None)))


@both
def test_mse_chooses_the_scales_of_numpy_in_whole_tiles_of_ordinary_weights(kind: FloatFormat) -> None:
    rng = np.random.default_rng(11)
    octave = kind.patterns_per_octave
    coarse = 9 * octave + rng.integers(0, 20, (48, 512)) * (octave // 4)  # quarter octaves: many ties, equal errors
    fine = kind.encode(rng.standard_normal((48, 517), np.float32))
    for patterns in (coarse.astype(np.uint16), fine):
        codes, scales = quantize_mxfp4(kind.decode(patterns), "mse")
        found = encoders.encode_mxfp4(patterns, kind, "mse")
        assert same_bits(found[0], pack_nibbles(pad(codes, 16, 1)))
        assert same_bits(found[1], pack_scales(pad(scales, 16, 1)))
    wider = scales != quantize_mxfp4(kind.decode(fine), "ocp")[1]
    assert 0.05 < wider.mean() < 0.95


@both
@every_rule
@given(patterns=matrices)
def test_mxfp4_of_any_finite_patterns_is_that_of_numpy(rule: Any, kind: FloatFormat, patterns: np.ndarray) -> None:
    patterns = np.where((patterns & 0x7FFF) < kind.infinity, patterns, patterns & 0x83FF).astype(np.uint16)
    codes, scales = quantize_mxfp4(kind.decode(patterns), rule)
    found = encoders.encode_mxfp4(patterns, kind, rule)
    assert same_bits(found[0], pack_nibbles(pad(codes, 16, 1)))
    assert same_bits(found[1], pack_scales(pad(scales, 16, 1)))


@both
@every_rule
@pytest.mark.parametrize("place", [(0, 0), (37, 211), (39, 299), (16, 31), (15, 32), (32, 288)], ids=str)
def test_the_first_nonfinite_weight_is_named(place: tuple[int, int], rule: Any, kind: FloatFormat) -> None:
    for pattern in (kind.infinity, kind.infinity | 0x8000, kind.infinity + 1, 0xFFFF):
        patterns = weights(kind, (20, 1100)).reshape(-1)[: 40 * 300].reshape(40, 300).copy()
        patterns[place] = patterns[39, 299] = pattern
        with pytest.raises(NonFiniteError) as caught:
            encoders.encode_mxfp4(patterns, kind, rule)
        assert (caught.value.row, caught.value.column) == place
        value = kind.decode(np.array([pattern], np.uint16))[0]
        assert str(caught.value) == f"value at index {place} is {value}; MX formats need finite values."


def patterns_of(rows: list[str], kind: FloatFormat) -> np.ndarray | None:
    """Rows of float32 patterns in hexadecimal as 16-bit ones, or None where they have more bits."""
    words = np.array([[int(row[i : i + 8], 16) for i in range(0, len(row), 8)] for row in rows], np.uint32)
    with np.errstate(over="ignore"):
        patterns = kind.encode(words.view(np.float32))
    return patterns if np.array_equal(kind.decode(patterns).view(np.uint32), words) else None


@both
def test_mxfp4_vectors_as_stored(kind: FloatFormat) -> None:
    vectors = json.loads((VECTORS / "mxfp4.json").read_text())
    for case in vectors["matrices"]:
        patterns = patterns_of(case["values"], kind)
        assert patterns is not None, "small numbers"
        codes, scales = encoders.encode_mxfp4(patterns, kind, case["scale_rule"])
        assert (codes.tobytes().hex(), scales.tobytes().hex()) == (case["codes"], case["scales"])
    for case in vectors["blocks"]:
        if (patterns := patterns_of([case["values"]], kind)) is None:
            continue
        for rule in SCALE_RULES:
            codes, scales = encoders.encode_mxfp4(patterns, kind, rule)
            assert "".join(f"{code:x}" for code in unpack_nibbles(codes)[0]) == case[rule]["codes"], case["name"]
            assert f"{scales[0, 0, 0]:02x}" == case[rule]["scale"], case["name"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mxfp4_values_are_those_of_numpy(shape: tuple[int, int]) -> None:
    codes, scales = encoders.encode_mxfp4(weights(BF16, shape), BF16)
    if scales.size > 16:
        scales[0, -1, 0], scales[0, 0, 0] = 255, 254  # NaN; infinite for codes from 4 on
    expected = dequantize_mxfp4(unpack_nibbles(codes), unpack_scales(scales))[: shape[0], : shape[1]]
    found = encoders.decode_mxfp4(codes, scales, shape)
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()
