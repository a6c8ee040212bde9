"""4-bit products on a GPU: MXFP4 and the draft in BSFP, against the NumPy codecs."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE, assert_product, bsfp_weight, mxfp4_weight, tokens
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.gpu.weight import FourBitWeight, uploaded_weight
from mxconv.package.stored_matrix import StoredMxfp4

SHAPES = [(1, 1), (5, 31), (70, 172), (17, 1100)]  # ragged rows, columns, programs of rows and splits of columns


def weight(shape: tuple[int, int], codec: str) -> tuple[FourBitWeight, np.ndarray]:
    """A matrix on the device, and its values."""
    if codec == "mxfp4":
        return mxfp4_weight(gaussian(shape))
    stored = stored_bsfp(BF16.encode(gaussian(shape)), BF16)
    return bsfp_weight(stored).draft, decode_bsfp_draft(stored.packed, stored.table, shape)


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
    x = tokens(2, 40)
    assert_product(bsfp_weight(stored).draft.product(x), x, values)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_each_of_1_to_16_tokens_is_as_if_alone(codec: str) -> None:
    matrix, _ = weight((20, 136), codec)
    x = torch.randn(16, 136, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    alone = torch.cat([matrix.product(row[None]) for row in x])
    for num_tokens in (2, 7, 16):
        assert torch.equal(matrix.product(x[:num_tokens]), alone[:num_tokens])
