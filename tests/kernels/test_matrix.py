"""16-bit matrices multiply by the values of their patterns, and BSFP gives the same bits, however they are stored."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import encode_bsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.kernels import rowwise
from mxconv.kernels.encoders import fit_table
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix, Matrix
from mxconv.package.stored_matrix import StoredBsfp

rng = np.random.default_rng(4)

WIDTHS = [(BF16, 8), (BF16, 9), (FP16, 10), (FP16, 11), (FP16, 12)]
SHAPES = [(1, 1), (16, 64), (33, 172)]


def fitted(patterns: np.ndarray, float_format: FloatFormat, residual_bits: int, row_shifts: bool) -> SegmentTable:
    histogram = PatternHistogram(float_format)
    histogram.add(patterns)
    return fit_table(histogram, residual_bits, row_shifts).table


def stored(patterns: np.ndarray, table: SegmentTable) -> StoredBsfp:
    """As a package hands it out: row tiles are decoded by themselves."""
    shifts = row_shifts_of(patterns, table.float_format) if table.has_row_shifts else None
    packed = encode_bsfp(patterns, table, shifts)
    offsets = np.concatenate([[0], np.cumsum(packed.escape_counts.sum(axis=1, dtype=np.int64))])
    return StoredBsfp((patterns.shape[0], patterns.shape[1]), table, packed, offsets, 1.0)


def bsfp_matrix(patterns: np.ndarray, table: SegmentTable) -> BsfpMatrix:
    held = stored(patterns, table)
    return BsfpMatrix(held.shape, table.float_format, held.target_rows)


def weights(shape: tuple[int, int], float_format: FloatFormat, outliers: bool) -> np.ndarray:
    """Patterns of Gaussian rows whose scales differ; with outliers, numbers that no segment reaches."""
    values = (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 1, (shape[0], 1))).astype(np.float32)
    if outliers:
        lonely = rng.random(shape) < 0.05
        values[lonely] = rng.choice([0, -0.0, 2.4062, 1e-7, -3000, 6e-5], int(lonely.sum()))
    return float_format.encode(values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("float_format", "residual_bits"), WIDTHS, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize("row_shifts", [False, True])
def test_every_bit_of_the_product_is_that_of_the_dense_matrix(
    shape: tuple[int, int], float_format: FloatFormat, residual_bits: int, row_shifts: bool
) -> None:
    patterns = weights(shape, float_format, outliers=True)
    table = fitted(patterns, float_format, residual_bits, row_shifts)
    assert table.has_row_shifts == row_shifts
    matrix, dense = bsfp_matrix(patterns, table), DenseMatrix(patterns, float_format)
    assert matrix.shape == dense.shape
    for num_tokens in (1, 5):
        x = rng.standard_normal((num_tokens, shape[1])).astype(np.float32)
        assert matrix.multiply(x).tobytes() == dense.multiply(x).tobytes()
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    assert matrix.rows(indices).tobytes() == dense.rows(indices).tobytes()


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_the_tests_weights_do_escape_where_they_should(float_format: FloatFormat) -> None:
    patterns = weights((70, 257), float_format, outliers=True)
    table = fitted(patterns, float_format, 8 if float_format == BF16 else 10, row_shifts=True)
    assert stored(patterns, table).escape_offsets[-1] > 100


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_the_paper_table_rebuilds_the_same_matrix(float_format: FloatFormat) -> None:
    patterns = weights((33, 172), float_format, outliers=True)
    x = rng.standard_normal((3, 172)).astype(np.float32)
    matrix = bsfp_matrix(patterns, paper_table(float_format))
    assert matrix.multiply(x).tobytes() == DenseMatrix(patterns, float_format).multiply(x).tobytes()


@pytest.mark.parametrize("products", [1, 40 * 172, 1 << 30])
def test_tiles_of_any_size_begin_where_a_row_tile_does(monkeypatch: pytest.MonkeyPatch, products: int) -> None:
    patterns = weights((100, 172), BF16, outliers=True)
    matrix, dense = bsfp_matrix(patterns, fitted(patterns, BF16, 8, True)), DenseMatrix(patterns, BF16)
    x = rng.standard_normal((2, 172)).astype(np.float32)
    expected = dense.multiply(x)
    monkeypatch.setattr(rowwise, "TILE_PRODUCTS", products)
    assert matrix.multiply(x).tobytes() == expected.tobytes()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 150), seed=st.integers(0, 2**32), wide=st.booleans())
def test_any_bit_patterns_at_all_come_back(rows: int, columns: int, seed: int, wide: bool) -> None:
    """Uniform 16-bit patterns: NaNs, infinities and subnormals among them, most of them escapes."""
    patterns = np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns)).astype(np.uint16)
    float_format = FP16 if wide else BF16
    held = stored(patterns, paper_table(float_format))
    matrix = BsfpMatrix(held.shape, float_format, held.target_rows)
    np.testing.assert_array_equal(matrix.rows(np.arange(rows)), float_format.decode(patterns))
    assert (held.target_rows(0, rows) == patterns).all()


def test_infinities_and_nans_flow_into_the_product_as_they_do_from_dense_weights() -> None:
    patterns = weights((20, 64), BF16, outliers=False)
    patterns[3, 5], patterns[7, 1] = 0x7F80, 0xFFC1
    matrix = bsfp_matrix(patterns, paper_table(BF16))
    x = np.abs(rng.standard_normal((2, 64))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        found, expected = matrix.multiply(x), DenseMatrix(patterns, BF16).multiply(x)
    assert np.isinf(found[:, 3]).all()
    assert np.isnan(found[:, 7]).all()
    np.testing.assert_array_equal(found, expected)


def random_patterns(float_format: FloatFormat, *shape: int) -> np.ndarray:
    return float_format.encode(rng.standard_normal(shape, np.float32))


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_a_dense_matrix_multiplies_by_the_values_of_its_patterns(float_format: FloatFormat) -> None:
    patterns = random_patterns(float_format, 70, 172)
    matrix: Matrix = DenseMatrix(patterns, float_format)
    x = rng.standard_normal((5, 172), np.float32)
    expected = x.astype(np.float64) @ float_format.decode(patterns).T.astype(np.float64)
    assert matrix.shape == (70, 172)
    np.testing.assert_allclose(matrix.multiply(x), expected, atol=1e-4)


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
def test_rows_are_exact(float_format: FloatFormat) -> None:
    patterns = random_patterns(float_format, 20, 8)
    rows = DenseMatrix(patterns, float_format).rows(np.array([19, 0, 19]))
    assert (float_format.encode(rows) == patterns[[19, 0, 19]]).all()


def test_two_formats_of_the_same_weights_give_the_same_bits() -> None:
    values = rng.integers(-8, 9, (40, 96)).astype(np.float32) / 4  # exact in both formats
    x = rng.standard_normal((3, 96), np.float32)
    bf16, fp16 = (DenseMatrix(each.encode(values), each).multiply(x) for each in (BF16, FP16))
    assert (bf16 == fp16).all()


def test_weights_are_read_from_an_unaligned_read_only_memory_map(tmp_path: Path) -> None:
    patterns = random_patterns(BF16, 33, 40)
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0" + patterns.tobytes())  # safetensors headers may put tensors at any byte
    mapped = np.memmap(path, np.uint8, mode="r")[1:].view(np.uint16).reshape(33, 40)
    x = rng.standard_normal((2, 40), np.float32)
    assert (DenseMatrix(mapped, BF16).multiply(x) == DenseMatrix(patterns, BF16).multiply(x)).all()
