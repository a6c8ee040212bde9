"""What benchmarks multiply: bytes as a package stores them, and the weights that NumPy decodes from them."""

import numpy as np
import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.operands import KERNELS, make_operand
from mxconv.bench.slabs import SIGMA, SLAB_ROWS


@pytest.mark.parametrize(
    ("kernel", "bits"),
    [("bf16", 16), ("fp16", 16), ("mxint8", 8.25), ("mxfp4-int8", 4.25), ("mxfp4-fp32", 4.25), ("bsfp-draft", 4.125)],
)
def test_a_product_reads_the_bits_that_a_weight_takes(kernel: str, bits: float) -> None:
    assert make_operand(kernel, (64, 256)).bits_per_weight == bits


def test_bsfp_as_a_target_reads_everything_but_the_drafts_scales() -> None:
    operand = make_operand("bsfp-full", (1024, 1024))
    assert "scales" not in operand.arrays
    assert 12 < operand.bits_per_weight < 13
    assert operand.num_bytes == sum(array.nbytes for array in operand.arrays.values())


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_behind_the_slab_repeat_it(kernel: str) -> None:
    num_rows = SLAB_ROWS + 40
    operand = make_operand(kernel, (num_rows, 64))
    rows = np.array([0, 17, SLAB_ROWS, SLAB_ROWS + 17, num_rows - 1])
    weights = operand.weights(rows)
    assert np.array_equal(weights[0], weights[2])
    assert np.array_equal(weights[1], weights[3])
    assert abs(weights.std() - SIGMA) < 0.3 * SIGMA


def test_escape_offsets_go_on_counting_in_repeated_rows() -> None:
    arrays = make_operand("bsfp-full", (3 * SLAB_ROWS - 5, 64)).arrays
    counts = arrays["escape_counts"].sum(axis=1, dtype=np.int64)
    assert np.array_equal(np.diff(arrays["escape_offsets"]), counts)
    assert arrays["escape_offsets"][-1] == len(arrays["escape_positions"]) == len(arrays["escape_high"])


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_same_shape_and_seed_give_the_same_bytes(kernel: str) -> None:
    first, second = (make_operand(kernel, (20, 40)).arrays for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
