"""Every rung of examples/gpu_ladder.py, compiled for a GPU and run on the CPU from its PTX."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from fragment_kernels import launch_here
from gpu_weights import assert_product
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.packing import decode_bsfp
from mxconv.codecs.float16 import BF16
from mxconv.errors import MxconvError
from mxconv.gpu import fragment_product as of_product
from mxconv.gpu.fragments import FragmentArrays, fragments_of

SHAPE = (48, 2176)  # nothing is padded; which several programs take along the columns


@pytest.fixture(scope="module")
def ladder() -> Any:
    """The script as a module."""
    path = Path(__file__).parents[2] / "examples/gpu_ladder.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def matrix() -> tuple[FragmentArrays, np.ndarray]:
    """A matrix with escapes, and its patterns."""
    stored = stored_bsfp(BF16.encode(gaussian(SHAPE, 0, outliers=True) / 8), BF16, residual_bits=8, row_shifts=True)
    return fragments_of(stored, torch.device("cpu"), {})[0], decode_bsfp(stored.packed, stored.table, SHAPE)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_product, "launch", launch_here)


def test_each_rung_computes_what_it_says(here: None, ladder: Any, matrix: tuple[FragmentArrays, np.ndarray]) -> None:
    exact, patterns = matrix
    assert len(exact.escapes) > 0
    x = (torch.randint(-64, 65, (3, SHAPE[1]), generator=torch.Generator().manual_seed(1)) / 16).bfloat16()
    assert xor(ladder.climb("reader", exact, x)) == xor(exact.codes) ^ xor(exact.residuals)
    values = BF16.decode(patterns)
    assert_product(ladder.climb("escapes", exact, x).sum(0), x.float(), values)
    ladder.check(exact, x, ladder.RUNGS)
    product = ladder.climb("product", exact, x).sum(0)
    assert not np.allclose(product.numpy(), x.float().numpy() @ values.T), "escapes are left out"


def test_without_escapes_patterns_and_products_are_right(here: None, ladder: Any) -> None:
    values = np.random.default_rng(0).choice(np.array([0.5, -0.25, 0.75, 1.0], np.float32), SHAPE)
    stored = stored_bsfp(BF16.encode(values), BF16, residual_bits=8)
    exact, _ = fragments_of(stored, torch.device("cpu"), {})
    assert not len(exact.escapes)
    x = (torch.randint(-64, 65, (3, SHAPE[1]), generator=torch.Generator().manual_seed(1)) / 16).bfloat16()
    assert_product(ladder.climb("product", exact, x).sum(0), x.float(), values)
    pairs = xor(ladder.climb("decode", exact, x))
    assert (pairs ^ pairs >> 16) & 0xFFFF == np.bitwise_xor.reduce(BF16.encode(values), axis=None)


def test_other_bits_are_an_error(
    here: None, monkeypatch: pytest.MonkeyPatch, ladder: Any, matrix: tuple[FragmentArrays, np.ndarray]
) -> None:
    monkeypatch.setattr(ladder, "climb", lambda rung, arrays, x: torch.zeros(len(x), SHAPE[0]))
    with pytest.raises(MxconvError, match="sums: other bits than the product"):
        ladder.check(matrix[0], torch.ones(1, SHAPE[1], dtype=torch.bfloat16), ("escapes", "sums"))


def xor(words: torch.Tensor) -> int:
    return int(np.bitwise_xor.reduce(words.numpy(), axis=None))
