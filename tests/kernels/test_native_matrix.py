"""Native matrices over arrays of every provenance: read where they lie, or copied once, or refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_models import stored_bsfp

from mxconv.codecs.bsfp.packing import PackedBsfp, encode_bsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.mxfp4 import quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad
from mxconv.errors import PackageError
from mxconv.kernels.draft_matrix import bsfp_draft_matrix, mxfp4_matrix
from mxconv.kernels.engine import native_names
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix

if not native_names():
    pytest.skip("the extension is not built on this machine", allow_module_level=True)

from mxconv.kernels.native_matrix import NativeMatrix, native_bsfp, native_dense, native_draft

SHAPE = (40, 136)


def patterns_of(rng: np.random.Generator, float_format: FloatFormat = BF16) -> np.ndarray:
    return float_format.encode((rng.standard_normal(SHAPE) * 0.1).astype(np.float32))


def at_an_odd_address(array: np.ndarray) -> np.ndarray:
    """As a foreign safetensors file may hold it."""
    buffer = np.zeros(array.nbytes + 1, np.uint8)
    buffer[1:] = array.view(np.uint8).reshape(-1)
    odd = buffer[1:].view(array.dtype).reshape(array.shape)
    assert not odd.flags.aligned
    return odd


def bsfp_matrix(engine: Any, patterns: np.ndarray, float_format: FloatFormat = BF16, **changes: Any) -> NativeMatrix:
    """With some arrays replaced."""
    stored = stored_bsfp(patterns, float_format)
    offsets = changes.pop("escape_offsets", stored.escape_offsets)
    reference = BsfpMatrix(stored.shape, float_format, stored.target_rows)
    return native_bsfp(engine, reference, replace(stored.packed, **changes), offsets, stored.table, "model: tensor w")


def test_arrays_are_read_where_they_lie(engine: Any, rng: np.random.Generator) -> None:
    patterns = patterns_of(rng)
    matrix = native_dense(engine, DenseMatrix(patterns, BF16))
    x = rng.standard_normal((2, SHAPE[1])).astype(np.float32)
    before = matrix.multiply(x)
    patterns[:] = 0
    assert before.any()
    assert not matrix.multiply(x).any()


@pytest.mark.parametrize("misplace", [at_an_odd_address, lambda a: a.T.copy().T, lambda a: np.repeat(a, 2, 1)[:, ::2]])
def test_a_tensor_that_kernels_cannot_read_in_place_is_copied(
    engine: Any, rng: np.random.Generator, misplace: Any
) -> None:
    patterns = patterns_of(rng)
    x = rng.standard_normal((3, SHAPE[1])).astype(np.float32)
    expected = native_dense(engine, DenseMatrix(patterns, BF16)).multiply(x)
    assert (native_dense(engine, DenseMatrix(misplace(patterns), BF16)).multiply(x) == expected).all()


def test_activations_may_be_strided_and_none(engine: Any, rng: np.random.Generator) -> None:
    matrix = native_dense(engine, DenseMatrix(patterns_of(rng), BF16))
    x = rng.standard_normal((6, SHAPE[1])).astype(np.float32)
    assert (matrix.multiply(x[::2]) == matrix.multiply(x)[::2]).all()
    assert matrix.multiply(x[:0]).shape == (0, SHAPE[0])


@pytest.mark.parametrize("float_format", [BF16, FP16])
def test_rows_are_exact_in_any_order(engine: Any, rng: np.random.Generator, float_format: FloatFormat) -> None:
    patterns = patterns_of(rng, float_format)
    indices = np.array([39, 0, 16, 15, 15, 32])
    expected = float_format.decode(patterns[indices])
    assert (native_dense(engine, DenseMatrix(patterns, float_format)).rows(indices) == expected).all()
    assert (bsfp_matrix(engine, patterns, float_format).rows(indices) == expected).all()
    assert bsfp_matrix(engine, patterns, float_format).rows(indices[:0]).shape == (0, SHAPE[1])


def test_the_paper_table_drafts_on_the_float_path(engine: Any, rng: np.random.Generator) -> None:
    patterns = patterns_of(rng)
    table = paper_table(BF16)
    packed = encode_bsfp(patterns, table)
    reference = bsfp_draft_matrix(SHAPE, packed.codes, packed.scales, table)
    matrix = native_draft(engine, reference)
    x = rng.standard_normal((5, SHAPE[1])).astype(np.float32)
    np.testing.assert_allclose(matrix.multiply(x), reference.multiply(x), rtol=1e-4, atol=1e-4)
    assert (matrix.rows(np.arange(4)) == reference.rows(np.arange(4))).all()


def test_mxfp4_and_fitted_bsfp_draft_with_float32_activations_too(engine: Any, rng: np.random.Generator) -> None:
    values = (rng.standard_normal(SHAPE) * 0.1).astype(np.float32)
    x = rng.standard_normal((5, SHAPE[1])).astype(np.float32)
    codes, scales = quantize_mxfp4(values)
    arrays = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    stored = stored_bsfp(BF16.encode(values), BF16)
    planes = stored.packed.codes, stored.packed.scales, stored.table
    made = [
        native_draft(engine, mxfp4_matrix(SHAPE, *arrays, "fp32")),
        native_draft(engine, bsfp_draft_matrix(SHAPE, *planes, "fp32")),
    ]
    by_int8 = [
        native_draft(engine, mxfp4_matrix(SHAPE, *arrays)),
        native_draft(engine, bsfp_draft_matrix(SHAPE, *planes)),
    ]
    for matrix, other in zip(made, by_int8, strict=True):
        weights = matrix.rows(np.arange(SHAPE[0]))
        assert (weights == other.rows(np.arange(SHAPE[0]))).all()
        exact = x.astype(np.float64) @ weights.astype(np.float64).T
        errors = [np.abs(m.multiply(x) - exact).max() for m in (matrix, other)]
        assert errors[0] < 1e-5 < 1e-3 < errors[1]  # what int8 costs, and float32 does not


def first_tile_with_two(packed: PackedBsfp) -> int:
    """Index into the lists of the first escape of a tile that has two."""
    counts = packed.escape_counts.ravel()
    tile = int(np.argmax(counts >= 2))
    assert counts[tile] >= 2
    return int(counts[:tile].sum())


def damaged(rng: np.random.Generator, what: str) -> dict[str, np.ndarray]:
    """Escape lists that contradict themselves."""
    stored = stored_bsfp(patterns_of(rng), BF16)
    counts, positions = stored.packed.escape_counts.copy(), stored.packed.escape_positions.copy()
    offsets = stored.escape_offsets.copy()
    place = first_tile_with_two(stored.packed)
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
def test_escape_lists_that_contradict_themselves_are_refused(
    engine: Any, rng: np.random.Generator, what: str, message: str
) -> None:
    lists = damaged(rng, what)
    required = "lists that name each escape once, in order, are required. The file is damaged; convert again."
    with pytest.raises(PackageError, match=f"^model: tensor w: {message}; {required}$"):
        bsfp_matrix(engine, patterns_of(np.random.default_rng(11)), **lists)
