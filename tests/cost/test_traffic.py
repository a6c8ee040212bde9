"""Bytes of packages whose experts are stacked in one tensor."""

from pathlib import Path

import pytest
from packages import quantize
from stacked_models import write_random_model

from mxconv.checkpoint.package import Package
from mxconv.cost.counts import multiplied_weights
from mxconv.cost.levels import Workload, level_count
from mxconv.cost.package_levels import package_levels
from mxconv.cost.traffic import checkpoint_bytes


def test_stacked_experts_are_counted_at_what_is_stored_of_them(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "m", "gpt_oss")
    quantize(source, tmp_path / "p")
    with Package(tmp_path / "p") as package:
        target, draft = package_levels(package)
    a = target.architecture
    assert a is not None and target.num_bytes is not None and draft.num_bytes is not None
    weights = multiplied_weights(a, float("inf"))  # of all experts
    assert target.num_bytes == checkpoint_bytes(source) == pytest.approx(2 * weights, rel=0.01)  # biases are 0.2%
    assert draft.num_bytes == pytest.approx(4.25 / 8 * weights, rel=0.02)  # routers stay in 16 bits


def test_a_pass_reads_the_experts_that_its_tokens_choose(tmp_path: Path) -> None:
    quantize(write_random_model(tmp_path / "m", "gpt_oss"), tmp_path / "p")
    with Package(tmp_path / "p") as package:
        target = package_levels(package)[0]
    a = target.architecture
    assert a is not None
    for num_tokens in (1, 4):
        found = level_count(target, Workload(), num_tokens)
        assert found.weight_bytes + found.scale_bytes == pytest.approx(2 * multiplied_weights(a, num_tokens), rel=0.01)
