"""4-bit products on a GPU: MXFP4 and the draft in BSFP, against the NumPy codecs and the CPU's own late scaling."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import (
    DEVICE,
    assert_product,
    bsfp_weight,
    gaussian,
    mxfp4_weight,
    stored_bsfp,
    stored_mxfp4,
    tokens,
)

from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import quantize_int8
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.errors import ModelError
from mxconv.gpu.int8_product import int8_activations
from mxconv.gpu.weight import Activations, FourBitWeight, uploaded_weight
from mxconv.kernels.draft_matrix import bsfp_draft_matrix, mxfp4_matrix
from mxconv.package.stored_matrix import StoredMxfp4

SHAPES = [(1, 1), (5, 31), (70, 172), (17, 1100)]  # ragged rows, columns, programs of rows and splits of columns


def weight(shape: tuple[int, int], codec: str, activations: Activations = "bf16") -> tuple[FourBitWeight, np.ndarray]:
    """A matrix on the device, and its values."""
    if codec == "mxfp4":
        return mxfp4_weight(gaussian(shape), activations)
    stored = stored_bsfp(BF16.encode(gaussian(shape)), BF16)
    return bsfp_weight(stored, activations=activations).draft, decode_bsfp_draft(stored.packed, stored.table, shape)


@pytest.mark.parametrize(
    ("shape", "codec"), [*((shape, "mxfp4") for shape in SHAPES), (SHAPES[1], "bsfp"), (SHAPES[3], "bsfp")]
)
def test_values_and_products_are_those_of_the_codec(shape: tuple[int, int], codec: str) -> None:
    matrix, values = weight(shape, codec)
    assert (matrix.rows, matrix.columns) == shape
    assert np.array_equal(matrix.rebuild().cpu().numpy(), values)
    x = tokens(3, shape[1])
    assert_product(matrix.product(x), x, values)


def test_every_code_at_every_scale_is_the_codecs() -> None:
    """16 codes under 256 scales, subnormal ones and NaN among them."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    with np.errstate(over="ignore"):
        found = uploaded_weight(StoredMxfp4((256, 32), pack_nibbles(codes), pack_scales(scales)), DEVICE).rebuild()
        assert np.array_equal(found.cpu().numpy(), dequantize_mxfp4(codes, scales), equal_nan=True)


def test_the_papers_levels_run_too() -> None:
    stored = stored_bsfp(BF16.encode(gaussian((20, 40)) / 64), BF16, table=paper_table(BF16))
    values = decode_bsfp_draft(stored.packed, stored.table, (20, 40))
    matrix = bsfp_weight(stored, activations="int8")
    x = tokens(2, 40)
    assert_product(matrix.draft.product(x), x, values)
    with pytest.raises(ModelError, match=r"levels that are no integers with int8 activations.*Use activations='bf16'"):
        FourBitWeight(matrix.draft.arrays, "int8")


@pytest.mark.parametrize("num_columns", [1, 31, 32, 1100])
def test_int8_activations_are_the_cpus_bit_for_bit(num_columns: int) -> None:
    x = gaussian((7, num_columns), seed=5)
    x[0] = 0
    x[1] *= np.float32(2.0**-124)  # below the least scale in some blocks
    x[2] = (np.arange(num_columns) % 255) - 127  # ties
    x[2, ::32] = 254
    codes, scales = int8_activations(torch.from_numpy(x).to(DEVICE))
    expected, expected_scales = quantize_int8(x)
    assert np.array_equal(codes.cpu().numpy(), expected)
    assert np.array_equal(scales.cpu().numpy(), expected_scales)


@pytest.mark.parametrize(
    ("shape", "codec"), [*((shape, "bsfp") for shape in SHAPES), (SHAPES[1], "mxfp4"), (SHAPES[3], "mxfp4")]
)
def test_int8_products_are_the_cpus_bit_for_bit(shape: tuple[int, int], codec: str) -> None:
    """Of each split of 1024 columns; the sums of the splits are then added in order."""
    values, x = gaussian(shape), gaussian((4, shape[1]), seed=6)
    expected = np.zeros((4, shape[0]), np.float32)
    bsfp, (mxfp4, _) = stored_bsfp(BF16.encode(values), BF16), stored_mxfp4(values)
    for first in range(0, shape[1], 1024):
        part = (shape[0], min(1024, shape[1] - first))
        tiles = slice(first // 8, (first + 1024) // 8)
        if codec == "mxfp4":
            on_cpu = mxfp4_matrix(part, mxfp4.codes[:, tiles], mxfp4.scales[:, first // 32 :])
        else:
            codes, scales = bsfp.packed.codes[:, tiles], bsfp.packed.scales[:, first // 128 :]
            on_cpu = bsfp_draft_matrix(part, codes, scales, bsfp.table)
        expected += on_cpu.multiply(x[:, first : first + part[1]])
    matrix, _ = weight(shape, codec, "int8")
    assert np.array_equal(matrix.product(torch.from_numpy(x).to(DEVICE)).cpu().numpy(), expected)


@pytest.mark.parametrize(("codec", "activations"), [("mxfp4", "int8"), ("bsfp", "bf16")])
def test_each_of_1_to_16_tokens_is_as_if_alone(codec: str, activations: Activations) -> None:
    matrix, _ = weight((20, 136), codec, activations)
    x = torch.randn(16, 136, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    alone = torch.cat([matrix.product(row[None]) for row in x])
    for num_tokens in (2, 7, 16):
        assert torch.equal(matrix.product(x[:num_tokens]), alone[:num_tokens])


@pytest.mark.parametrize("intruder", [np.nan, np.inf])
def test_a_token_that_is_not_finite_becomes_nan_in_int8_and_spoils_no_other(intruder: float) -> None:
    matrix, _ = weight((20, 100), "mxfp4", "int8")
    x = tokens(4, 100)
    expected = matrix.product(x)
    x[2, 17] = intruder
    found = matrix.product(x)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])
