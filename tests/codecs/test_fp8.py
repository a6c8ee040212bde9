import json
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from mxconv.codecs.fp8 import E4M3_VALUES, decode_fp8

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "fp8.json"


def numbers(rows: list[str], num_digits: int) -> np.ndarray:
    return np.array(
        [[int(row[i : i + num_digits], 16) for i in range(0, len(row), num_digits)] for row in rows], np.uint32
    )


def test_every_byte_has_the_value_that_ml_dtypes_gives_it() -> None:
    expected = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(E4M3_VALUES, expected, equal_nan=True)
    assert np.array_equal(np.signbit(E4M3_VALUES[:0x7F]), np.signbit(expected[:0x7F]))
    assert np.signbit(E4M3_VALUES[0x80]) and np.flatnonzero(np.isnan(E4M3_VALUES)).tolist() == [0x7F, 0xFF]


def test_a_matrix_decodes_to_the_vector() -> None:
    vectors = json.loads(VECTORS.read_text())
    (values,) = numbers([vectors["values"]], 8)
    assert np.array_equal(E4M3_VALUES, values.view(np.float32), equal_nan=True)
    matrix = vectors["matrix"]
    codes, weights = numbers(matrix["codes"], 2).astype(np.uint8), numbers(matrix["weights"], 4)
    scales, block = numbers(matrix["scales"], 8).view(np.float32), tuple(matrix["block"])
    for start in range(len(codes)):  # any row may be the first
        assert np.array_equal(decode_fp8(codes[start:], scales, block, start), weights[start:])


@given(st.data())
def test_weights_are_those_of_transformers(data: st.DataObject) -> None:
    block = data.draw(st.sampled_from([(128, 128), (16, 8), (1, 32)]))
    grid = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shape = grid[0] * block[0], grid[1] * block[1]  # transformers reads whole blocks alone
    codes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, shape).astype(np.uint8)
    finite = st.floats(2**-40, 2**20, width=32)
    scales = data.draw(arrays.arrays(np.float32, grid, elements=finite))
    weights = torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)
    expected = Fp8Dequantize(None)._dequantize_one(weights, torch.from_numpy(scales), torch.bfloat16)
    found = decode_fp8(codes, scales, block)
    patterns = expected.view(torch.int16).numpy().view(np.uint16)
    is_nan = (codes & 0x7F) == 0x7F
    assert np.array_equal(found[~is_nan], patterns[~is_nan])
    assert np.isnan(found[is_nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()
