"""Exports stream: one of a 117 MB model takes less than 75 MB beside the libraries, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from packages import quantize

from mxconv.checkpoint.safetensors_header import format_header

LIMIT = 75_000_000  # bytes
SHAPE = (14_336, 4096)
EXPORT = """
import resource, sys
from pathlib import Path
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.plain_safetensors import export_safetensors
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
export = {"mxfp4": export_compressed_tensors, "bsfp": export_safetensors}[sys.argv[1]]
export(Path(sys.argv[2]), Path(sys.argv[3]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_peak_memory_does_not_grow_with_the_model(codec: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    block = (np.random.default_rng(0).standard_normal((2048, SHAPE[1]), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    header, _ = format_header([("model.layers.0.mlp.up_proj.weight", "BF16", SHAPE)], {})
    with (source / "model.safetensors").open("xb") as file:
        file.write(header)
        for _ in range(SHAPE[0] // len(block)):
            file.write(block.tobytes())
    (source / "config.json").write_text("{}")
    quantize(source, tmp_path / "package", codec=codec)
    # a shell between: the kernel counts what a process was before its exec, and this one may have loaded a lot
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", EXPORT, codec]
    run = subprocess.run(
        [*command, str(tmp_path / "package"), str(tmp_path / "export")], check=True, capture_output=True, text=True
    )
    assert 2 * SHAPE[0] * SHAPE[1] > LIMIT
    assert int(run.stdout) < LIMIT
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
