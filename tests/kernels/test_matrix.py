"""16-bit matrices by NumPy: products by the values of their patterns, and BSFP gives the same bits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.kernels import rowwise
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix
from mxconv.package.stored_matrix import StoredBsfp

rng = np.random.default_rng(4)
FITTED = [(BF16, 8), (BF16, 9), (FP16, 10), (FP16, 11), (FP16, 12)]
SHAPES = [(1, 1), (16, 64), (33, 172)]
both = pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)


def rebuilt(held: StoredBsfp) -> BsfpMatrix:
    """As a package hands it out: row tiles are decoded by themselves."""
    return BsfpMatrix(held.shape, held.table.float_format, held.target_rows)


def escaping(shape: tuple[int, int], float_format: FloatFormat) -> np.ndarray:
    """Patterns of Gaussian rows, and numbers that no segment reaches."""
    values = gaussian(shape) / np.float32(8)
    lonely = rng.random(shape) < 0.05
    values[lonely] = rng.choice([0, -0.0, 2.4062, 1e-7, -3000, 6e-5], int(lonely.sum()))
    return float_format.encode(values)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("float_format", "bits", "row_shifts"), [*((*each, shifts) for each in FITTED for shifts in (False, True)),
    (BF16, None, False), (FP16, None, False)],
    ids=str,
)  # fmt: skip
def test_every_bit_of_bsfps_product_is_that_of_the_dense_matrix(
    shape: tuple[int, int], float_format: FloatFormat, bits: int | None, row_shifts: bool
) -> None:
    """In tables that fit, and without a number of bits in the paper's."""
    patterns = escaping(shape, float_format)
    held = stored_bsfp(patterns, float_format, row_shifts, bits, None if bits else paper_table(float_format))
    assert held.table.has_row_shifts == row_shifts
    assert held.escape_offsets[-1] > 50 or shape != SHAPES[2], "the weights are to escape"
    matrix, dense = rebuilt(held), DenseMatrix(patterns, float_format)
    assert matrix.shape == dense.shape
    for num_tokens in (1, 5):
        x = rng.standard_normal((num_tokens, shape[1])).astype(np.float32)
        assert matrix.multiply(x).tobytes() == dense.multiply(x).tobytes()
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    assert matrix.rows(indices).tobytes() == dense.rows(indices).tobytes()


@pytest.mark.parametrize("products", [1, 40 * 172, 1 << 30])
def test_tiles_of_any_size_begin_where_a_row_tile_does(monkeypatch: pytest.MonkeyPatch, products: int) -> None:
    patterns = escaping((100, 172), BF16)
    x = rng.standard_normal((2, 172)).astype(np.float32)
    expected = DenseMatrix(patterns, BF16).multiply(x)
    monkeypatch.setattr(rowwise, "TILE_PRODUCTS", products)
    assert rebuilt(stored_bsfp(patterns, BF16, True, 8)).multiply(x).tobytes() == expected.tobytes()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 150), seed=st.integers(0, 2**32), wide=st.booleans())
def test_any_bit_patterns_at_all_come_back(rows: int, columns: int, seed: int, wide: bool) -> None:
    """Uniform 16-bit patterns: NaNs, infinities and subnormals among them, most of them escapes."""
    patterns = np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns)).astype(np.uint16)
    float_format = FP16 if wide else BF16
    held = stored_bsfp(patterns, float_format, table=paper_table(float_format))
    np.testing.assert_array_equal(rebuilt(held).rows(np.arange(rows)), float_format.decode(patterns))
    assert (held.target_rows(0, rows) == patterns).all()


def test_infinities_and_nans_flow_into_the_product_as_they_do_from_dense_weights() -> None:
    patterns = BF16.encode(gaussian((20, 64)))
    patterns[3, 5], patterns[7, 1] = 0x7F80, 0xFFC1
    x = np.abs(rng.standard_normal((2, 64))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        found = rebuilt(stored_bsfp(patterns, BF16, table=paper_table(BF16))).multiply(x)
        expected = DenseMatrix(patterns, BF16).multiply(x)
    assert np.isinf(found[:, 3]).all()
    assert np.isnan(found[:, 7]).all()
    np.testing.assert_array_equal(found, expected)


@both
def test_a_dense_matrix_multiplies_by_the_values_of_its_patterns(float_format: FloatFormat) -> None:
    patterns = float_format.encode(rng.standard_normal((70, 172), np.float32))
    matrix, x = DenseMatrix(patterns, float_format), rng.standard_normal((5, 172), np.float32)
    expected = x.astype(np.float64) @ float_format.decode(patterns).T.astype(np.float64)
    np.testing.assert_allclose(matrix.multiply(x), expected, atol=1e-4)
    assert (float_format.encode(matrix.rows(np.array([19, 0, 19]))) == patterns[[19, 0, 19]]).all()


def test_two_formats_of_the_same_weights_give_the_same_bits() -> None:
    values = rng.integers(-8, 9, (40, 96)).astype(np.float32) / 4  # exact in both formats
    x = rng.standard_normal((3, 96), np.float32)
    bf16, fp16 = (DenseMatrix(each.encode(values), each).multiply(x) for each in (BF16, FP16))
    assert (bf16 == fp16).all()


def test_weights_are_read_from_an_unaligned_read_only_memory_map(tmp_path: Path) -> None:
    patterns = BF16.encode(gaussian((33, 40)))
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0" + patterns.tobytes())  # safetensors headers may put tensors at any byte
    mapped = np.memmap(path, np.uint8, mode="r")[1:].view(np.uint16).reshape(33, 40)
    x = rng.standard_normal((2, 40), np.float32)
    assert (DenseMatrix(mapped, BF16).multiply(x) == DenseMatrix(patterns, BF16).multiply(x)).all()
