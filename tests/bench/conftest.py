"""Read bandwidth by single short samples: the tests look at no rate."""

import pytest

from mxconv.bench import rates


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "BANDWIDTH_SAMPLES", 1)
    monkeypatch.setattr(rates, "BANDWIDTH_BYTES", 1 << 20)
    monkeypatch.setattr(rates, "BANDWIDTH_CACHES", 1)
