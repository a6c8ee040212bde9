from pathlib import Path

import numpy as np
import pytest

from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.kernels.dense import DenseMatrix
from mxconv.kernels.matrix import Matrix

rng = np.random.default_rng(1)


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
