"""16-bit matrices by NumPy and by every native implementation: products against float64, BSFP gives the same bits."""

import platform
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import PackageError
from mxconv.kernels.engine import native_names
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix
from mxconv.package.stored import StoredBsfp

if native_names():
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import native_bsfp, native_dense

SHAPE = (40, 136)
SHAPES = [(1, 1), (5, 31), (17, 128), (64, 172), (257, 96), (48, 1100)]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 70, 203]
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
    x = rng.standard_normal((203, shape[1])).astype(np.float32)
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


STACKS = """
import sys, numpy as np
from mxconv.kernels import _native
x, out = np.ones((203, 1536), np.float32), np.empty((203, 64), np.float32)
weights = _native.dense(np.full((64, 1536), 0x3F80, np.uint16), "BF16")
weights.multiply(_native.Engine(sys.argv[1], 2), x, out)
print(bool((out == 1536).all()))
"""


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="elsewhere a limit of the stack is not that of threads; emulators need more themselves",
)
def test_products_of_prompts_need_no_more_stack_than_threads_of_macos_have(engine: Any) -> None:
    command = ["sh", "-c", 'ulimit -s 512 && exec "$0" -c "$1" "$2"', sys.executable, STACKS, engine.name]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


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


DAMAGES: dict[str, tuple[str, int, int, str]] = {  # a list, which of its numbers, what is added to it, and the message
    "position above 127": ("escape_positions", -1, 128, "escape_positions above 127"),
    "position twice": ("escape_positions", 1, 0, "escape_positions of a tile that do not ascend"),
    "counts that lead out": ("escape_counts", -1, 1, "escape_offsets do not end at the number of escapes"),
    "offsets that lead out": ("escape_offsets", 1, 1, "escape_offsets are not the sums of escape_counts"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_escape_lists_that_contradict_themselves_are_refused(engine: Any, what: str) -> None:
    name, place, more, message = DAMAGES[what]
    held = stored_bsfp(patterns_of(), BF16, True, 8)
    arrays = {"escape_offsets": held.escape_offsets} | vars(held.packed)
    damaged = arrays[name].copy()
    if what == "position twice":  # of the first tile that has two
        counts = held.packed.escape_counts.ravel()
        tile = int(np.argmax(counts >= 2))
        place = int(counts[:tile].sum()) + 1
        damaged[place] = damaged[place - 1]
    else:
        damaged.ravel()[place] = more if name == "escape_positions" else damaged.ravel()[place] + more
    required = "lists that name each escape once, in order, are required. The file is damaged; convert again."
    with pytest.raises(PackageError, match=f"^model: tensor w: {message}; {required}$"):
        bsfp(engine, held, **{name: damaged})
