"""SPEQ's bits, its decoder's gates and the paper table: one remapping, three ways, on every input of the window."""

import numpy as np
import pytest

from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.speq import (
    BF16_OFFSET,
    decode_layout,
    decode_logic,
    encode_layout,
    paper_table,
    rescale,
    rescale_factor,
    undo_rescale,
)
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat
from mxconv.errors import CodecError

both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)
DRAFT_EXPONENTS = [2, 2, 2, 2, 6, 6, 6, 6, 8, 9, 10, 11, 12, 12, 14, 14]
FLAGGED = {0, 1, 4, 5, 9, 11}


def window(kind: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    """All patterns of both signs whose exponent lies in the window, and that exponent counted in it."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    exponents = (patterns & MAGNITUDE_MASK).astype(int) // kind.patterns_per_octave
    exponents -= BF16_OFFSET if kind is BF16 else 0
    inside = (exponents >= 0) & (exponents < 16)
    return patterns[inside], exponents[inside]


@both
def test_layout_gates_and_table_agree_on_every_input(kind: FloatFormat) -> None:
    patterns, exponents = window(kind)
    assert len(patterns) == 2 * 16 * kind.patterns_per_octave
    table = paper_table(kind)
    planes = encode_planes(patterns[None], table)
    wq, wr = encode_layout(patterns, kind)
    bits = decode_logic(wq, wr)

    assert not planes.escaped.any()
    assert (planes.nibbles[0] == wq).all()
    assert (bits.sign == patterns >> 15).all()
    assert (bits.full_exponent == exponents).all()
    assert (bits.draft_exponent == np.array(DRAFT_EXPONENTS)[exponents]).all()
    signs = np.where(bits.sign, -1.0, 1.0)
    assert (table.signed_levels[planes.nibbles[0]] == signs * 2.0 ** (bits.draft_exponent.astype(int) - 15)).all()
    assert (decode_layout(wq, wr, kind) == patterns).all()


@both
def test_the_flag_marks_remapped_exponents_and_the_layout_takes_16_bits(kind: FloatFormat) -> None:
    patterns, exponents = window(kind)
    wq, wr = encode_layout(patterns, kind)
    assert ((wr >> 11 & 1).astype(bool) == np.isin(exponents, list(FLAGGED))).all()
    assert ((wr >> 10 & 1) == exponents % 2).all()
    assert wq.max() < 16
    assert wr.max() < 1 << 12
    assert len(np.unique(wq.astype(np.uint32) << 12 | wr)) == len(patterns)
    if kind is BF16:
        assert (wr & 0b111 == 0).all()


def test_codes_of_the_paper_are_by_exponent() -> None:
    patterns = (np.arange(16) << 10).astype(np.uint16)
    wq, _ = encode_layout(patterns, FP16)
    codes = [0b001] * 4 + [0b011] * 4 + [0b100, 0b000, 0b101, 0b010, 0b110, 0b110, 0b111, 0b111]
    assert wq.tolist() == codes


@both
def test_a_weight_outside_the_window_is_an_error(kind: FloatFormat) -> None:
    beyond = kind.encode(np.array([0.5, 2.0], np.float32))
    message = r"^SPEQ layout: an exponent lies outside the window of 16; rescale the tensor first\.$"
    with pytest.raises(CodecError, match=message):
        encode_layout(beyond, kind)


def test_only_tensors_above_2_are_scaled() -> None:
    assert rescale_factor(0.0) == 1
    assert rescale_factor(2.0) == 1
    assert rescale_factor(2.4062) == float(np.float32(1.999 / 2.4062))


@both
def test_a_factor_of_one_changes_nothing(kind: FloatFormat) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    assert rescale(patterns, 1.0, kind) is patterns
    assert undo_rescale(patterns, 1.0, kind) is patterns


@both
def test_the_largest_weight_enters_the_window_and_comes_back_within_a_rounding(kind: FloatFormat) -> None:
    values = np.random.default_rng(1).normal(0, 0.02, (16, 128)).astype(np.float32)
    values[3, 5] = 2.4062
    patterns = kind.encode(values)
    factor = rescale_factor(float(np.abs(kind.decode(patterns)).max()))
    scaled = rescale(patterns, factor, kind)
    # 1.999 is 2 in BF16: one pattern beyond SPEQ's window, and still inside the paper table's last segment
    assert np.abs(kind.decode(scaled)).max() == (2 if kind is BF16 else 1.9990234375)
    largest = np.abs(kind.decode(scaled)) == np.abs(kind.decode(scaled)).max()
    assert not encode_planes(scaled, paper_table(kind)).escaped[largest].any()
    if kind is FP16:
        encode_layout(scaled, kind)
    back = kind.decode(undo_rescale(scaled, factor, kind))
    assert np.abs(back - kind.decode(patterns)).max() <= 2.4062 * 2.0**-kind.mantissa_bits
    assert (undo_rescale(scaled, factor, kind) != patterns).any()
