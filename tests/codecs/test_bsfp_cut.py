"""Cuts against their bit layout read from binary strings, their scale against lstsq, the clamp against values."""

import math

import numpy as np
import pytest

from mxconv.codecs.bsfp.cut import CUTS, Cut, cut_draft, to_fp16_bits
from mxconv.codecs.bsfp.draft import decode_draft, fit_group_scales
from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import CodecError

both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)
every_cut = pytest.mark.parametrize("name", CUTS)
EVERY_PATTERN = np.arange(1 << 16, dtype=np.uint16)
FITTING_BF16 = EVERY_PATTERN[np.abs(BF16.decode(EVERY_PATTERN)) < 65536]
KEPT = {  # of s eeeee mmmmmmmmmm, x where a bit is kept
    "E3M0 naive": "x .xxx. ..........",
    "E2M1": "x .xx.. x.........",
    "E1M2": "x .x... xx........",
    "E2M1 seam": "x ...xx x.........",
    "E1M2 seam": "x ....x xx........",
}


def layout_value(text: str) -> float:
    """The number that 16 binary digits stand for by SPEQ Eq. 3: an implicit one at every exponent."""
    return (-1) ** int(text[0]) * 2.0 ** (int(text[1:6], 2) - 15) * (1 + int(text[6:], 2) / 1024)


def slow_cut(pattern: int, kept: str) -> tuple[int, float]:
    """Nibble and value of one pattern."""
    marks, digits = kept.replace(" ", ""), f"{pattern:016b}"
    left = "".join(digit if mark == "x" else "0" for digit, mark in zip(digits, marks, strict=True))
    nibble = int("".join(digit for digit, mark in zip(digits, marks, strict=True) if mark == "x"), 2)
    return nibble, layout_value(left)


def draft_values(patterns: np.ndarray, kind: FloatFormat, cut: Cut) -> np.ndarray:
    """(rows, columns) float64: level times group scale."""
    nibbles, scales = cut_draft(patterns, kind, cut)
    levels = np.array(cut.levels)[nibbles & 7] * np.where(nibbles & 8, -1.0, 1.0)
    return levels * np.repeat(BF16.decode(scales), 128, axis=1)[:, : patterns.shape[1]]


def gaussian(kind: FloatFormat, deviation: float = 0.02) -> np.ndarray:
    return kind.encode(np.random.default_rng(7).normal(0, deviation, (64, 512)).astype(np.float32))


@every_cut
def test_every_fp16_pattern_gives_the_bits_and_the_value_of_the_layout(name: str) -> None:
    nibbles = CUTS[name].encode(EVERY_PATTERN)
    expected = [slow_cut(pattern, KEPT[name]) for pattern in range(1 << 16)]
    assert nibbles.tolist() == [nibble for nibble, _ in expected]
    signed = [*CUTS[name].levels, *(-level for level in CUTS[name].levels)]
    assert [signed[nibble] for nibble in nibbles] == [value for _, value in expected]


@both
@every_cut
def test_scales_are_those_of_lstsq_on_the_weights_before_clamp_and_rescaling(name: str, kind: FloatFormat) -> None:
    per_row = np.array([[1.0], [0.1], [200.0], [2.0**-12]], np.float32)  # one beyond 2, one below 2^-15
    patterns = kind.encode(kind.decode(gaussian(kind)[:4, :300]) * per_row)  # the last group has 44 columns
    nibbles, scales = cut_draft(patterns, kind, CUTS[name])
    assert scales.shape == (4, 3)
    levels = np.array([*CUTS[name].levels, *(-level for level in CUTS[name].levels)])[nibbles]
    weights = kind.decode(patterns).astype(np.float64)
    for row, group in np.ndindex(4, 3):
        part = slice(128 * group, 128 * group + 128)
        best = np.linalg.lstsq(levels[row, part, None], weights[row, part], rcond=None)[0]
        assert BF16.encode(best.astype(np.float32))[0] == scales[row, group]


@both
def test_the_remapping_is_nearer_than_the_naive_cut_and_that_is_nearer_than_the_others(kind: FloatFormat) -> None:
    patterns, table = gaussian(kind), paper_table(kind)
    weights = kind.decode(patterns).astype(np.float64)
    nibbles = encode_planes(patterns, table).nibbles
    remapped = decode_draft(nibbles, fit_group_scales(patterns, nibbles, table), table)
    error = {name: float(((draft_values(patterns, kind, cut) - weights) ** 2).sum()) for name, cut in CUTS.items()}
    naive = error.pop("E3M0 naive")
    assert ((remapped - weights) ** 2).sum() < naive < min(error.values())


@both
def test_a_tensor_beyond_2_is_rescaled_before_it_is_cut(kind: FloatFormat) -> None:
    """Uncut, 2.5 would set the unused bit and get the code of 2^-15; Algorithm 1 brings it to 1.999."""
    patterns = kind.encode(np.array([[2.5, -2.5, 0.25, 2.0**-12]], np.float32))
    nibbles, _ = cut_draft(patterns, kind, CUTS["E3M0 naive"])
    assert nibbles.tolist() == [[7, 15, 6, 1]]
    nibbles, _ = cut_draft(kind.encode(np.array([[1.0, -1.0, 0.25]], np.float32)), kind, CUTS["E3M0 naive"])
    assert nibbles.tolist() == [[7, 15, 6]]


def test_every_bf16_weight_is_kept_from_2_to_the_minus_15_on_and_moved_into_the_next_octave_below() -> None:
    assert len(FITTING_BF16) == 2 * 143 * 128
    values = BF16.decode(FITTING_BF16).tolist()
    for value, bits in zip(values, to_fp16_bits(FITTING_BF16, BF16).tolist(), strict=True):
        expected = abs(value)
        if expected < 2.0**-126:  # zero and subnormals have no implicit one; the layout gives them one
            expected = (1 + expected / 2.0**-126) * 2.0**-15
        elif expected < 2.0**-15:
            expected = math.frexp(expected)[0] * 2 * 2.0**-15
        assert layout_value(f"{bits:016b}") == math.copysign(expected, value)


@pytest.mark.parametrize("value", [65536.0, -3e38, math.inf, math.nan])
@both
def test_a_weight_beyond_fp16_is_an_error(kind: FloatFormat, value: float) -> None:
    patterns = kind.encode(np.array([[0.5, value]], np.float32))
    message = r"^FP16 layout: a weight is 65536 or more, or not finite; less is required\. Keep this tensor\.$"
    with pytest.raises(CodecError, match=message):
        cut_draft(patterns, kind, CUTS["E2M1"])
