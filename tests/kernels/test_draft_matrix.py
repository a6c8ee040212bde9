"""The 4-bit kernel against exact integer arithmetic, against the dequantized product, and at the edges of its tiles."""

import numpy as np
import pytest

from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import decode_bsfp_draft, encode_bsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, unpack_nibbles
from mxconv.kernels import draft_matrix, rowwise
from mxconv.kernels.draft_matrix import Activations, FourBitFloatMatrix, FourBitMatrix, bsfp_draft_matrix, mxfp4_matrix
from mxconv.kernels.encoders import fit_table

rng = np.random.default_rng(3)

SHAPES = [(1, 1), (5, 31), (16, 32), (20, 129), (257, 96)]
EPSILON = np.finfo(np.float32).eps


def mxfp4(
    values: np.ndarray, activations: Activations = "int8"
) -> tuple[FourBitMatrix | FourBitFloatMatrix, np.ndarray]:
    """The kernel's matrix and, from the codec, what it stands for."""
    codes, scales = quantize_mxfp4(values)
    matrix = mxfp4_matrix(
        (values.shape[0], values.shape[1]),
        pack_nibbles(pad(codes, TILE_ROWS, 1)),
        pack_scales(pad(scales, TILE_ROWS, 1)),
        activations,
    )
    return matrix, dequantize_mxfp4(codes, scales)[:, : values.shape[1]]


def bsfp(
    values: np.ndarray,
    float_format: FloatFormat = BF16,
    row_shifts: bool | None = None,
    paper: bool = False,
    activations: Activations = "int8",
) -> tuple[FourBitMatrix | FourBitFloatMatrix, np.ndarray]:
    patterns = float_format.encode(values)
    histogram = PatternHistogram(float_format)
    histogram.add(patterns)
    table = paper_table(float_format) if paper else fit_table(histogram, row_shifts=row_shifts).table
    shifts = row_shifts_of(patterns, float_format) if table.has_row_shifts else None
    packed = encode_bsfp(patterns, table, shifts)
    shape = (values.shape[0], values.shape[1])
    matrix = bsfp_draft_matrix(shape, packed.codes, packed.scales, table, activations)
    return matrix, decode_bsfp_draft(packed, table, shape)


def gaussian(shape: tuple[int, int]) -> np.ndarray:
    """Rows whose scales differ by octaves."""
    scales = 2.0 ** rng.integers(-6, 3, (shape[0], 1))
    return (rng.standard_normal(shape) * scales).astype(np.float32)


def late_scaling_by_hand(matrix: FourBitMatrix, x: np.ndarray) -> np.ndarray:
    """Exact integers over each block, then one float32 addition a block in ascending order."""
    codes, x_scales = quantize_int8(x)
    num_blocks = x_scales.shape[1]
    levels = matrix.levels.astype(np.int64)[unpack_nibbles(matrix.codes)[:, : num_blocks * BLOCK]]
    scales = matrix.scales(0, len(matrix.codes))
    total = np.zeros((len(x), len(levels)), np.float32)
    for block in range(num_blocks):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        integers = codes[:, columns].astype(np.int64) @ levels[:, columns].T
        assert np.abs(integers).max() < 1 << 24  # so float32 holds them
        total += integers.astype(np.float32) * x_scales[:, block, None] * scales[None, :, block]
    return total[:, : matrix.shape[0]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", [mxfp4, bsfp])
def test_every_bit_follows_from_exact_integers_and_one_scaling_a_block(shape: tuple[int, int], codec: object) -> None:
    matrix, _ = codec(gaussian(shape))  # type: ignore[operator]
    x = rng.standard_normal((7, shape[1])).astype(np.float32)
    assert matrix.multiply(x).tobytes() == late_scaling_by_hand(matrix, x).tobytes()


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_the_paper_table_runs_in_float32_on_unrounded_activations(float_format: FloatFormat) -> None:
    values = (rng.standard_normal((37, 172)) * 0.03).astype(np.float32)
    matrix, weights = bsfp(values, float_format, paper=True)
    assert isinstance(matrix, FourBitFloatMatrix)
    x = rng.standard_normal((6, 172)).astype(np.float32)
    found = matrix.multiply(x)
    assert found.tobytes() == rowwise.linear(x, 37, lambda start, stop: weights[start:stop]).tobytes()
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(found - x.astype(np.float64) @ weights.T.astype(np.float64)) <= 12 * EPSILON * magnitude).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", ["mxfp4", "bsfp", "paper"])
def test_rows_are_the_dequantized_rows(shape: tuple[int, int], codec: str) -> None:
    values = (rng.standard_normal(shape) * 0.05).astype(np.float32)
    matrix, weights = mxfp4(values) if codec == "mxfp4" else bsfp(values, paper=codec == "paper")
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    rows = matrix.rows(indices)
    assert rows.dtype == np.float32
    assert (rows == weights[indices]).all()


@pytest.mark.parametrize("max_tile_weights", [1, 16 * 172, 1 << 30])
def test_the_size_of_a_tile_changes_no_bit(monkeypatch: pytest.MonkeyPatch, max_tile_weights: int) -> None:
    matrix, _ = mxfp4(gaussian((100, 172)))
    x = rng.standard_normal((5, 172)).astype(np.float32)
    expected = matrix.multiply(x)
    monkeypatch.setattr(draft_matrix, "MAX_TILE_WEIGHTS", max_tile_weights)
    assert matrix.multiply(x).tobytes() == expected.tobytes()


@pytest.mark.parametrize("intruder", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_becomes_nan_and_spoils_no_other(intruder: float) -> None:
    """The target lets such numbers flow; a draft that raised would stop the text that the target can write."""
    matrix, _ = mxfp4(gaussian((20, 100)))
    x = rng.standard_normal((4, 100)).astype(np.float32)
    expected = matrix.multiply(x)
    x[2, 17] = intruder
    found = matrix.multiply(x)
    assert np.isnan(found[2]).all()
    assert (found[[0, 1, 3]] == expected[[0, 1, 3]]).all()
