"""BSFP on a GPU against the NumPy codec: every bit of the weights, and products whose rows stand alone."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE, assert_product, bits, bsfp_weight, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import CodecError
from mxconv.gpu.weight import BsfpWeight

FORMATS = pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)


def weight(
    values: np.ndarray, float_format: FloatFormat, row_shifts: bool = False, residual_bits: int | None = None
) -> tuple[BsfpWeight, np.ndarray]:
    """A matrix on the device, and its patterns."""
    patterns = float_format.encode(values)
    return bsfp_weight(stored_bsfp(patterns, float_format, row_shifts, residual_bits)), patterns


@FORMATS
@pytest.mark.parametrize("kind", ["fitted", "paper"])
def test_all_65536_patterns_come_back(float_format: FloatFormat, kind: str) -> None:
    patterns = np.random.default_rng(0).permutation(np.arange(1 << 16, dtype=np.uint16)).reshape(256, 256)
    table = paper_table(float_format) if kind == "paper" else None
    stored = stored_bsfp(patterns, float_format, row_shifts=table is None, table=table)
    assert len(stored.packed.escape_high) > 10_000
    assert np.array_equal(bits(bsfp_weight(stored).rebuild()), patterns)


@pytest.mark.parametrize(
    ("shape", "float_format", "residual_bits"),
    [((1, 1), BF16, 9), ((15, 33), FP16, 12), ((70, 172), BF16, 9), ((70, 172), FP16, 11), ((33, 1100), FP16, 10)],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_weights_of_any_shape_and_width_come_back(
    shape: tuple[int, int], float_format: FloatFormat, residual_bits: int
) -> None:
    for row_shifts in (False, True):
        matrix, patterns = weight(gaussian(shape), float_format, row_shifts, residual_bits)
        assert matrix.arrays.has_row_starts == (row_shifts and shape[0] > 0)
        assert np.array_equal(bits(matrix.rebuild()), patterns)


def test_an_escape_at_every_place_of_a_tile_comes_back() -> None:
    """Tile c has one at place c in row tile 0, all but that in row tile 1; in row tile 2, tile 77 is all escapes."""
    starts = tuple(range(0x3C00, 0x4000, 0x80))
    table = SegmentTable(BF16, 8, (starts,), tuple(range(10, 90, 10)))
    patterns = np.random.default_rng(1).integers(0x3C00, 0x3F00, (3, 128, 16, 8)).astype(np.uint16)
    outliers = np.random.default_rng(2).integers(0x4800, 0x7FFF, (3, 128, 128)).astype(np.uint16)
    place, tile = np.arange(128)[None, :], np.arange(128)[:, None]
    escapes = np.stack([place == tile, place != tile, np.broadcast_to(tile == 77, (128, 128))])
    patterns = np.where(escapes, outliers, patterns.reshape(3, 128, 128)).reshape(3, 128, 16, 8)
    patterns = np.ascontiguousarray(patterns.transpose(0, 2, 1, 3).reshape(48, 1024))
    stored = stored_bsfp(patterns, BF16, table=table)
    assert np.array_equal(stored.packed.escape_counts, escapes.sum(axis=2))
    assert np.array_equal(bits(bsfp_weight(stored).rebuild()), patterns)


@settings(max_examples=4)
@given(rows=st.integers(1, 80), columns=st.integers(1, 150), seed=st.integers(0, 2**32), is_wide=st.booleans())
def test_any_patterns_at_all_come_back(rows: int, columns: int, seed: int, is_wide: bool) -> None:
    """Uniform 16-bit patterns: NaNs, infinities and subnormals among them, most of them escapes."""
    patterns = np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns)).astype(np.uint16)
    float_format = FP16 if is_wide else BF16
    found = bsfp_weight(stored_bsfp(patterns, float_format, table=paper_table(float_format))).rebuild()
    assert np.array_equal(bits(found), patterns)


def test_patches_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, patterns = weight(gaussian((100, 300)), BF16, row_shifts=True)
    monkeypatch.setattr("mxconv.gpu.patches.ESCAPES_AT_A_TIME", 1)
    again, _ = weight(gaussian((100, 300)), BF16, row_shifts=True)
    assert matrix.arrays.patches.words.numel() > 100
    for name, found in vars(again.arrays.patches).items():
        assert torch.equal(found, getattr(matrix.arrays.patches, name)), name
    assert np.array_equal(bits(again.rebuild()), patterns)


@FORMATS
def test_a_token_of_one_one_gets_a_column_of_the_exact_weights(float_format: FloatFormat) -> None:
    """So the product's weights are those that are rebuilt, to the bit: zeros but one leave nothing to round."""
    matrix, patterns = weight(gaussian((70, 172)) * np.float32(2.0**-4), float_format)
    assert matrix.arrays.patches.words.numel() > 20
    for first in (0, 156):
        x = torch.zeros(16, 172, device=DEVICE)
        x[torch.arange(16), first + torch.arange(16)] = 1
        assert np.array_equal(matrix.product(x).cpu().numpy().T, float_format.decode(patterns[:, first : first + 16]))


@pytest.mark.parametrize(
    ("shape", "float_format"),
    [((1, 1), FP16), ((15, 33), BF16), ((70, 172), BF16), ((70, 172), FP16), ((33, 1100), FP16)],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_a_product_is_that_of_the_exact_weights(shape: tuple[int, int], float_format: FloatFormat) -> None:
    matrix, patterns = weight(gaussian(shape), float_format, row_shifts=shape[0] == 70)
    assert (matrix.rows, matrix.columns) == shape
    x = tokens(5, shape[1])
    assert_product(matrix.product(x), x, float_format.decode(patterns))


@pytest.mark.parametrize("num_columns", [136, 1200])  # and of two splits
def test_each_of_1_to_16_tokens_is_as_if_alone(num_columns: int) -> None:
    matrix, _ = weight(gaussian((16, num_columns)), BF16)
    x = torch.randn(16, num_columns, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    alone = torch.cat([matrix.product(row[None]) for row in x])
    for num_tokens in (2, 7, 16):
        assert torch.equal(matrix.product(x[:num_tokens]), alone[:num_tokens])


def test_a_token_that_is_not_finite_spoils_no_other() -> None:
    matrix, _ = weight(gaussian((20, 40)), BF16)
    x = tokens(4, 40)
    expected = matrix.product(x)
    x[2, 17] = torch.inf
    with np.errstate(invalid="ignore"):
        found = matrix.product(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])


@FORMATS
def test_a_matrix_takes_little_more_than_its_files(float_format: FloatFormat) -> None:
    stored = stored_bsfp(float_format.encode(gaussian((512, 1024))), float_format)
    in_file = sum(array.nbytes for array in vars(stored.packed).values() if array is not None)
    assert 0 < bsfp_weight(stored).num_bytes - in_file < 0.05 * in_file


def test_lists_that_contradict_themselves_are_refused_before_a_kernel_reads_them() -> None:
    stored = stored_bsfp(BF16.encode(gaussian((32, 64))), BF16)
    stored.packed.escape_counts[0, 0] += 1
    with pytest.raises(CodecError, match=r"escapes: counts sum to \d+, but \d+ positions"):
        bsfp_weight(stored)
