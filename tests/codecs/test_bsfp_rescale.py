import numpy as np
import pytest

from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.rescale import rescale, rescale_factor, undo_rescale
from mxconv.codecs.bsfp.speq import encode_layout, paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat

both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


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
