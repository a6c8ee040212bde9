"""16-bit matrices by NumPy and by every native implementation: products against float64, BSFP gives the same bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import PackageError
from mxconv.kernels import rowwise
from mxconv.kernels.engine import native_names
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix
from mxconv.package.stored_matrix import StoredBsfp

if native_names():
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import native_bsfp, native_dense

SHAPE = (40, 136)
SHAPES = [(1, 1), (5, 31), (17, 128), (64, 172), (257, 96), (48, 1100)]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 70]
both = pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
needs_native = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")


def patterns_of(float_format: FloatFormat = BF16, shape: tuple[int, int] = SHAPE) -> np.ndarray:
    return float_format.encode(gaussian(shape, outliers=True))


def dense(engine: Any, patterns: np.ndarray, float_format: FloatFormat = BF16) -> Any:
    matrix = DenseMatrix(patterns, float_format)
    return matrix if engine is None else native_dense(engine, matrix)


def bsfp(engine: Any, held: StoredBsfp, **changes: Any) -> Any:
    """With some arrays replaced."""
    offsets = changes.pop("escape_offsets", held.escape_offsets)
    reference = BsfpMatrix(held.shape, held.table.float_format, held.target_rows)
    if engine is None:
        return reference
    return native_bsfp(engine, reference, replace(held.packed, **changes), offsets, held.table, "model: tensor w")


@pytest.mark.parametrize("shape", SHAPES)
@both
def test_products_are_those_of_float64_up_to_float32_sums(
    either: Any, rng: np.random.Generator, shape: tuple[int, int], float_format: FloatFormat
) -> None:
    patterns = patterns_of(float_format, shape)
    x = rng.standard_normal((9, shape[1])).astype(np.float32)
    taken = (BF16.decode(BF16.encode(x)) if float_format == BF16 and either else x).astype(np.float64)
    weights = float_format.decode(patterns).astype(np.float64)
    bound = np.abs(taken) @ np.abs(weights).T * (shape[1] / 4 + 8) * np.finfo(np.float32).eps
    assert (np.abs(dense(either, patterns, float_format).multiply(x) - taken @ weights.T) <= bound).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("float_format", "bits", "row_shifts"),
    [(BF16, 8, False), (BF16, 9, True), (FP16, 10, True), (FP16, 11, False), (FP16, 12, True), (BF16, None, False),
     (FP16, None, False)],
    ids=str,
)  # fmt: skip
def test_bsfp_gives_the_bits_of_the_16_bit_matrix_at_every_width_and_number_of_threads(
    either: Any,
    rng: np.random.Generator,
    shape: tuple[int, int],
    float_format: FloatFormat,
    bits: int | None,
    row_shifts: bool,
) -> None:
    """In tables that fit, and without a number of bits in the paper's."""
    patterns = patterns_of(float_format, shape)
    held = stored_bsfp(patterns, float_format, row_shifts, bits, None if bits else paper_table(float_format))
    assert held.table.has_row_shifts == row_shifts
    assert held.escape_offsets[-1] > 20 or shape != SHAPES[-1], "the weights are to escape"
    x = rng.standard_normal((70, shape[1])).astype(np.float32)
    alone = None if either is None else _native.Engine(either.name, 1)
    expected = dense(alone, patterns, float_format).multiply(x)
    for width in WIDTHS if either else (1, 5):
        for matrix in (dense(either, patterns, float_format), bsfp(either, held)):
            assert matrix.multiply(x[:width]).tobytes() == expected[:width].tobytes()
    for num_threads in (3, 5) if either else ():
        found = dense(_native.Engine(either.name, num_threads), patterns, float_format).multiply(x[:5])
        assert found.tobytes() == expected[:5].tobytes()


@both
def test_rows_are_exact_in_any_order(either: Any, float_format: FloatFormat) -> None:
    patterns, indices = patterns_of(float_format), np.array([39, 0, 16, 15, 15, 32])
    rebuilt = bsfp(either, stored_bsfp(patterns, float_format, True, 10 if float_format == FP16 else 8))
    for matrix in (dense(either, patterns, float_format), rebuilt):
        assert matrix.shape == SHAPE
        assert (matrix.rows(indices) == float_format.decode(patterns[indices])).all()
    assert rebuilt.rows(indices[:0]).shape == (0, SHAPE[1])


def test_infinities_and_nans_flow_into_the_product_as_they_do_from_dense_weights(
    either: Any, rng: np.random.Generator
) -> None:
    patterns = BF16.encode(gaussian((20, 64)))
    patterns[3, 5], patterns[7, 1] = 0x7F80, 0xFFC1
    x = np.abs(rng.standard_normal((2, 64))).astype(np.float32)
    with np.errstate(invalid="ignore"):
        found = bsfp(either, stored_bsfp(patterns, BF16, table=paper_table(BF16))).multiply(x)
        expected = dense(either, patterns).multiply(x)
    assert np.isinf(found[:, 3]).all()
    assert np.isnan(found[:, 7]).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("products", [1, 40 * 172, 1 << 30])
def test_tiles_of_any_size_begin_where_a_row_tile_does(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, products: int
) -> None:
    patterns, x = patterns_of(shape=(100, 172)), rng.standard_normal((2, 172)).astype(np.float32)
    expected = dense(None, patterns).multiply(x)
    monkeypatch.setattr(rowwise, "TILE_PRODUCTS", products)
    assert bsfp(None, stored_bsfp(patterns, BF16, True, 8)).multiply(x).tobytes() == expected.tobytes()


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 150), seed=st.integers(0, 2**32), wide=st.booleans())
def test_any_bit_patterns_at_all_come_back(rows: int, columns: int, seed: int, wide: bool) -> None:
    """Uniform 16-bit patterns: NaNs, infinities and subnormals among them, most of them escapes."""
    patterns = np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns)).astype(np.uint16)
    float_format = FP16 if wide else BF16
    held = stored_bsfp(patterns, float_format, table=paper_table(float_format))
    np.testing.assert_array_equal(bsfp(None, held).rows(np.arange(rows)), float_format.decode(patterns))
    assert (held.target_rows(0, rows) == patterns).all()


@both
@pytest.mark.parametrize("paper", [True, False])
def test_every_pattern_comes_back(
    engine: Any, rng: np.random.Generator, float_format: FloatFormat, paper: bool
) -> None:
    every = rng.permutation(np.arange(65536, dtype=np.uint16)).reshape(256, 256)
    bits = 10 if float_format == FP16 else 8
    held = stored_bsfp(every, float_format, not paper, bits, paper_table(float_format) if paper else None)
    assert len(held.packed.escape_high) > 1000
    matrix = bsfp(engine, held)
    for first, stop in ((0, 256), (32, 80)):
        out = np.empty_like(every[first:stop])
        matrix.handle.patterns(engine, first, out)
        assert np.array_equal(out, every[first:stop])


def test_two_formats_of_the_same_weights_give_the_same_bits(rng: np.random.Generator) -> None:
    values = rng.integers(-8, 9, (40, 96)).astype(np.float32) / 4  # exact in both formats
    x = rng.standard_normal((3, 96), np.float32)
    bf16, fp16 = (DenseMatrix(each.encode(values), each).multiply(x) for each in (BF16, FP16))
    assert (bf16 == fp16).all()


def test_weights_are_read_from_an_unaligned_read_only_memory_map(rng: np.random.Generator, tmp_path: Path) -> None:
    patterns = BF16.encode(gaussian((33, 40)))
    path = tmp_path / "weights.bin"
    path.write_bytes(b"\0" + patterns.tobytes())  # safetensors headers may put tensors at any byte
    mapped = np.memmap(path, np.uint8, mode="r")[1:].view(np.uint16).reshape(33, 40)
    x = rng.standard_normal((2, 40), np.float32)
    assert (DenseMatrix(mapped, BF16).multiply(x) == DenseMatrix(patterns, BF16).multiply(x)).all()


# ---- arrays of every provenance on native kernels ----


def test_arrays_are_read_where_they_lie(engine: Any, rng: np.random.Generator) -> None:
    patterns = patterns_of()
    matrix, x = dense(engine, patterns), rng.standard_normal((2, SHAPE[1])).astype(np.float32)
    before = matrix.multiply(x)
    patterns[:] = 0
    assert before.any()
    assert not matrix.multiply(x).any()


def at_an_odd_address(array: np.ndarray) -> np.ndarray:
    """As a foreign safetensors file may hold it."""
    odd = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    assert not odd.flags.aligned
    return odd


@pytest.mark.parametrize("misplace", [at_an_odd_address, lambda a: a.T.copy().T, lambda a: np.repeat(a, 2, 1)[:, ::2]])
def test_a_tensor_that_kernels_cannot_read_in_place_is_copied(
    engine: Any, rng: np.random.Generator, misplace: Any
) -> None:
    patterns, x = patterns_of(), rng.standard_normal((3, SHAPE[1])).astype(np.float32)
    assert (dense(engine, misplace(patterns)).multiply(x) == dense(engine, patterns).multiply(x)).all()


def test_activations_may_be_strided_and_none(engine: Any, rng: np.random.Generator) -> None:
    matrix, x = dense(engine, patterns_of()), rng.standard_normal((6, SHAPE[1])).astype(np.float32)
    assert (matrix.multiply(x[::2]) == matrix.multiply(x)[::2]).all()
    assert matrix.multiply(x[:0]).shape == (0, SHAPE[0])


@needs_native
def test_other_arrays_are_refused() -> None:
    patterns = patterns_of(shape=(32, 64))
    misplaced = np.frombuffer(b"\0" * 2049, np.uint8)[1:].view(np.uint16).reshape(32, 32)
    for wrong in (patterns.astype(np.int16), patterns[:, ::2], misplaced):
        with pytest.raises(TypeError):
            _native.dense(wrong, "BF16")
    with pytest.raises(ValueError, match="BF16 or F16"):
        _native.dense(patterns, "F32")
    engine, matrix, out = _native.Engine("portable", 1), _native.dense(patterns, "BF16"), np.empty((1, 32), np.float32)
    for x in (np.zeros((1, 64)), np.zeros((1, 63), np.float32), np.zeros(64, np.float32)):
        with pytest.raises(TypeError):
            matrix.multiply(engine, x, out)


def damaged(held: StoredBsfp, what: str) -> dict[str, np.ndarray]:
    """Escape lists that contradict themselves."""
    counts, positions = held.packed.escape_counts.copy(), held.packed.escape_positions.copy()
    offsets, tile = held.escape_offsets.copy(), int(np.argmax(counts.ravel() >= 2))
    assert counts.ravel()[tile] >= 2
    place = int(counts.ravel()[:tile].sum())  # of the first escape of a tile that has two
    if what == "position above 127":
        positions[-1] = 128
    if what == "position twice":
        positions[place + 1] = positions[place]
    if what == "positions that descend":
        positions[place : place + 2] = positions[place : place + 2][::-1]
    if what == "counts that lead out":
        counts[-1, -1] += 1
    if what == "offsets that lead out":
        offsets[1] += 1
    return {"escape_counts": counts, "escape_positions": positions, "escape_offsets": offsets}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("position above 127", "escape_positions above 127"),
        ("position twice", "escape_positions of a tile that do not ascend"),
        ("positions that descend", "escape_positions of a tile that do not ascend"),
        ("counts that lead out", "escape_offsets do not end at the number of escapes"),
        ("offsets that lead out", "escape_offsets are not the sums of escape_counts"),
    ],
)
def test_escape_lists_that_contradict_themselves_are_refused(engine: Any, what: str, message: str) -> None:
    held = stored_bsfp(patterns_of(), BF16, True, 8)
    required = "lists that name each escape once, in order, are required. The file is damaged; convert again."
    with pytest.raises(PackageError, match=f"^model: tensor w: {message}; {required}$"):
        bsfp(engine, held, **damaged(held, what))
