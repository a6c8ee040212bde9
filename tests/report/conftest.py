"""What the report is tested on: trained tiny models, and small checkpoints with one of everything."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.report.inspection import Inspection, inspect_weights
from mxconv.report.sources import open_weights


@pytest.fixture(params=["babyllama105-bf16", "stories260K-fp16"])
def trained_model(request: pytest.FixtureRequest) -> Path:
    models = os.environ.get("MXCONV_TEST_MODELS")
    if models is None:
        pytest.skip("MXCONV_TEST_MODELS is not set")
    return Path(models) / request.param


@cache
def _inspect_once(path: Path) -> Inspection:
    with open_weights(str(path)) as weights:
        return inspect_weights(weights)


@pytest.fixture
def inspect_trained(trained_model: Path) -> Callable[[], Inspection]:
    """The trained model's figures, computed once for all tests."""
    return lambda: _inspect_once(trained_model)


@pytest.fixture
def tiny_llama(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "llama", num_hidden_layers=1)


@pytest.fixture
def odd_checkpoint(tmp_path: Path) -> Path:
    """Names, shapes and values that are no model's."""
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal((48, 172)) * 0.02).astype(ml_dtypes.bfloat16)
    with_nan = matrix.copy()
    with_nan[5, 7] = np.nan
    with_nan[6, 8] = np.inf
    return write_safetensors(
        tmp_path / "odd.safetensors",
        {
            "<script>alert(1)</script>.weight": matrix,
            "a & $b$ \x1b[31m.weight": matrix[:1],
            "empty": np.zeros((0, 32), ml_dtypes.bfloat16),
            "experts": np.ones((2, 3, 4), ml_dtypes.bfloat16),
            "half.weight": np.ones((4, 4), np.float16),
            "nan.weight": with_nan,
            "positions": np.arange(4, dtype=np.int64),
            "scalar": np.array(3.0, ml_dtypes.bfloat16),
            "single.weight": np.ones((4, 4), np.float32),
            "zeros.weight": np.zeros((20, 40), ml_dtypes.bfloat16),
        },
    )


@pytest.fixture
def inspect_path() -> Callable[..., Inspection]:
    def run(path: Path, **options: object) -> Inspection:
        dtype = options.pop("dtype", None)
        with open_weights(str(path), dtype=dtype) as weights:  # type: ignore[arg-type]
            return inspect_weights(weights, **options)  # type: ignore[arg-type]

    return run


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    def run(source: Path, name: str = "package", **options: object) -> Path:
        with open_checkpoint(source) as checkpoint:
            convert(checkpoint, tmp_path / name, QuantizeOptions(**options))  # type: ignore[arg-type]
        return tmp_path / name

    return run
