"""What the report is tested on: models that tests only read, and what `inspect` finds in them, found once."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from packages import quantize

from mxconv.report.inspection import Inspection, inspect_weights
from mxconv.report.sources import open_weights

TRAINED = Path(__file__).parents[2] / "examples/models/pylib-0.2m"


@pytest.fixture(scope="session", params=["BF16", "F16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers: trained weights in BF16, random ones in F16."""
    is_trained = request.param == "BF16"
    return TRAINED if is_trained else write_tiny_llama(tmp_path_factory.mktemp("report") / "half", dtype="F16")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("report") / "llama", num_hidden_layers=1)


@pytest.fixture(scope="session")
def odd_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names, shapes and values that are no model's."""
    rng = np.random.default_rng(3)
    matrix = (rng.standard_normal((48, 172)) * 0.02).astype(ml_dtypes.bfloat16)
    with_nan = matrix.copy()
    with_nan[5, 7] = np.nan
    with_nan[6, 8] = np.inf
    return write_safetensors(
        tmp_path_factory.mktemp("report") / "odd.safetensors",
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


@pytest.fixture(scope="session")
def inspect_path() -> Callable[..., Inspection]:
    """Inspect a path; the same path with the same options once."""

    @cache
    def run(path: Path, dtype: Any = None, **options: Any) -> Inspection:
        with open_weights(str(path), dtype=dtype) as weights:
            return inspect_weights(weights, **options)

    return run


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A package of a source; the same source with the same options once."""

    @cache
    def run(source: Path, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("report") / "package"
        quantize(source, folder, **options)
        return folder

    return run
