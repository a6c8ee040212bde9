"""What tests of the native kernels share."""

from typing import Any

import numpy as np
import pytest

from mxconv.kernels.engine import choose_engine, native_names


@pytest.fixture(params=native_names())
def engine(request: pytest.FixtureRequest) -> Any:
    """Every implementation that this processor runs, with two threads."""
    return choose_engine(request.param, 2)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture(params=["numpy", *native_names()])
def either(request: pytest.FixtureRequest) -> Any:
    """NumPy, which is None, and every implementation that this processor runs."""
    return choose_engine(request.param, 2)
