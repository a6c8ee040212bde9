"""Nodes with addresses, ports and folders of their own, simulated by Ray and as `ray start` begins them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.skipif(sys.platform != "linux", reason="more than one address of loopback, and peaks of memory")
@pytest.mark.parametrize(("nodes", "num_workers"), [("3", 3), ("started", 2)])
def test_packages_of_several_nodes_have_the_bytes_of_threads(nodes: str, num_workers: int) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    command = [sys.executable, str(EXAMPLES / "cluster_nodes.py"), str(EXAMPLES / "models" / "pylib-0.2m")]
    done = subprocess.run([*command, "--nodes", nodes], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, count, found = done.stdout.splitlines()
    assert f"{num_workers} workers" in count
    members = json.loads(found)
    assert (members["packages"], members["wrong"]) == (2, 0) and members["largest_worker_bytes"] < 600_000_000
