"""More than 16 tokens: torch's product over rows that are rebuilt a panel at a time."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE, bsfp_weight, mxfp4_weight, tokens
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.float16 import BF16
from mxconv.errors import ModelError
from mxconv.gpu import weight
from mxconv.gpu.bsfp_product import rebuild


def test_many_tokens_multiply_the_exact_weights_a_panel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values = gaussian((150, 72))
    matrix = bsfp_weight(stored_bsfp(BF16.encode(values), BF16))
    rebuilt: list[int] = []

    def recorded(*arguments: int) -> torch.Tensor:
        rows = rebuild(*arguments)  # type: ignore[arg-type]
        rebuilt.append(rows.nbytes)
        return rows

    monkeypatch.setattr(weight, "rebuild", recorded)
    monkeypatch.setattr(weight, "SCRATCH_BYTES", 64 * 72 * 2)
    x = tokens(17, 72)
    found = matrix.product(x).cpu().numpy()
    assert len(rebuilt) == 3
    assert max(rebuilt) <= weight.SCRATCH_BYTES
    expected = x.cpu().double().numpy() @ BF16.decode(BF16.encode(values)).T.astype(np.float64)
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()  # rounded to BF16


def test_many_tokens_multiply_4_bit_weights() -> None:
    matrix, values = mxfp4_weight(gaussian((70, 40)))
    x = tokens(20, 40)
    expected = x.cpu().double().numpy() @ values.T.astype(np.float64)
    assert np.abs(matrix.product(x).cpu().numpy() - expected).max() < 0.01 * np.abs(expected).max()


def test_a_panel_of_the_widest_matrix_still_has_rows() -> None:
    assert weight.panel_rows(4096) == 8192
    assert weight.panel_rows(1 << 24) == 64


def test_what_are_no_tokens_is_refused() -> None:
    matrix, _ = mxfp4_weight(gaussian((16, 32)))
    for x in (torch.zeros(2, 33), torch.zeros(32), torch.zeros(0, 32), torch.zeros(2, 32, dtype=torch.int32)):
        with pytest.raises(ModelError, match=r"product: torch\.\w+ of shape .*; floats of shape \(tokens, 32\) are"):
            matrix.product(x.to(DEVICE))
    with pytest.raises(ModelError, match=r"product: input on meta, weights on .*; one device is required"):
        matrix.product(torch.zeros(2, 32, device="meta"))
