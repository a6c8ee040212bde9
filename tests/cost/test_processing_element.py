"""The processing element against the BSFP codec and float arithmetic, bit for bit."""

import numpy as np
import pytest
from published.processing_element import full_dot, quantize_dots

from mxconv.arrays import U16
from mxconv.codecs.bsfp.speq import decode_layout, encode_layout, paper_table
from mxconv.codecs.float16 import FP16
from mxconv.errors import CodecError

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
WEIGHTS = PATTERNS[(PATTERNS >> 10 & 0x1F) < 16]  # SPEQ's window: all FP16 patterns below 2.0
FINITE = PATTERNS[(PATTERNS >> 10 & 0x1F) < 31]


def in_order(activations: U16, weights: np.ndarray) -> np.float32:
    """FP32 sums of products, one after another; a product of FP16 values is exact in FP32."""
    total = np.float32(0)
    for activation, weight in zip(activations.view(np.float16), weights, strict=True):
        total = np.float32(total + np.float32(activation) * np.float32(weight))
    return total


@pytest.mark.parametrize("length", [1, 2, 3, 400])
def test_full_mode_sums_as_float_arithmetic_does(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(12):
        weights, activations = rng.choice(WEIGHTS, length), rng.choice(FINITE, length)
        wq, wr = encode_layout(weights, FP16)
        assert full_dot(activations, wq, wr) == (in_order(activations, weights.view(np.float16)), length)


@pytest.mark.parametrize("length", [1, 2, 128])
def test_quantize_mode_takes_an_activation_and_three_weight_groups_a_cycle(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(6):
        weights, activations = rng.choice(WEIGHTS, (3, length)), rng.choice(FINITE, length)
        wq = np.stack([encode_layout(group, FP16)[0] for group in weights])
        sums, cycles = quantize_dots(activations, wq)
        levels = paper_table(FP16).signed_levels
        assert sums == [in_order(activations, levels[group]) for group in wq]
        assert cycles == length  # three times as many weights as full mode multiplies in them


def test_every_weight_of_the_window_multiplies_exactly() -> None:
    wq, wr = encode_layout(WEIGHTS, FP16)
    assert (decode_layout(wq, wr, FP16) == WEIGHTS).all()
    odd = np.array([0x3555], np.uint16)  # a third
    for start in range(0, len(WEIGHTS), 7):
        one = slice(start, start + 1)
        assert full_dot(odd, wq[one], wr[one])[0] == in_order(odd, WEIGHTS[one].view(np.float16))


def test_an_infinite_activation_and_another_number_of_groups_are_errors() -> None:
    wq, wr = encode_layout(WEIGHTS[:1], FP16)
    with pytest.raises(CodecError, match=r"^activation: an infinity or NaN; finite FP16 values are required\."):
        full_dot(np.array([0x7C00], np.uint16), wq, wr)
    with pytest.raises(CodecError, match="infinity or NaN"):
        quantize_dots(np.array([0x7E00], np.uint16), np.repeat(wq[None], 3, axis=0))
    with pytest.raises(CodecError, match=r"^weights: shape \(2, 1\); \(3, 1\) is required"):
        quantize_dots(np.zeros(1, np.uint16), np.zeros((2, 1), np.uint8))
