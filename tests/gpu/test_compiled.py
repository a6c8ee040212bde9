"""The kernels compile for GPUs: what the interpreter takes, the compiler need not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_kernel_compiles_to_machine_code(capability: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), capability]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "12\n"
