"""How long conversions take on paper."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import TINY_LLAMA

from mxconv.cost.conversion_time import GB, Cluster, conversion_time


def test_each_resource_bounds_where_it_is_the_slowest() -> None:
    two_terabytes = 2000 * GB
    one = conversion_time(two_terabytes, "bsfp", Cluster(1, 4, 12.5 * GB, 100 * GB))
    assert one.bottleneck == "processors"
    assert one.seconds == pytest.approx(2000 * 3.2 / 4 + 5 / 1.8)
    slow = conversion_time(two_terabytes, "bsfp", Cluster(1, 64, 1.25 * GB, 100 * GB))
    assert slow.bottleneck == "network"
    assert slow.seconds == pytest.approx(2000 * 4.6 / 1.25 + 5 / 1.8)
    many = conversion_time(two_terabytes, "mxfp4", Cluster(64, 16, 12.5 * GB, 10 * GB))
    assert many.bottleneck == "store"
    assert many.seconds == pytest.approx(2000 * (2 + 2 * 4.25 / 16) / 10 + 5 / 1.8)


def test_the_command_prints_powers_of_two_and_the_number_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_LLAMA))
    words = ["cost", "--config", str(path), "--cluster", "6", "--network", "12.5", "--json"]
    done = subprocess.run([sys.executable, "-m", "mxconv.cli.main", *words], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["num_nodes"] for row in found["predictions"] if row["codec"] == "bsfp"] == [1, 2, 4, 6]
    assert "A model on paper" in done.stderr
