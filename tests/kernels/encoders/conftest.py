"""Every test of this folder runs with each implementation."""

from collections.abc import Iterator

import pytest

from mxconv.kernels.engine import native_names


@pytest.fixture(autouse=True, scope="module", params=native_names())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MXCONV_KERNEL", request.param)
        yield request.param
