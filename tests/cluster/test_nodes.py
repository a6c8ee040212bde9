"""Nodes with addresses, ports and folders of their own, as `ray start` begins them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.skipif(sys.platform != "linux", reason="more than one address of loopback, and peaks of memory")
def test_packages_of_several_nodes_have_the_bytes_of_threads() -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    command = [sys.executable, str(EXAMPLES / "cluster_nodes.py"), str(EXAMPLES / "models" / "pylib-0.2m")]
    done = subprocess.run([*command, "--nodes", "started"], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum("2 workers" in line for line in lines) == 1
    members = json.loads(lines[-1])
    assert (members["packages"], members["wrong"]) == (2, 0) and members["largest_worker_bytes"] < 600_000_000
