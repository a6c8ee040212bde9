"""Memory stays flat: a checkpoint of 302 MB, half of it one embedding, converts within 300 MB, and is verified so.

Only a process of its own can say what its peak was. Run it alone with `pytest tests/conversion/test_memory.py -s`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

LIMIT = 300_000_000  # bytes
VERIFY_LIMIT = 125_000_000
VERIFY = """
import resource, sys
from pathlib import Path
from mxconv.checkpoint.source import open_checkpoint
from mxconv.verify import verify
with open_checkpoint(sys.argv[2]) as checkpoint:
    assert verify(Path(sys.argv[1]), checkpoint, num_threads=2).lossless
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
COLUMNS = 4096
SHAPES = {"model.embed_tokens.weight": (18_432, COLUMNS)} | {
    f"model.layers.{n}.mlp.up_proj.weight": (9_216, COLUMNS) for n in range(2)
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gaussian weights, one block of 8 MB over and over."""
    path = tmp_path_factory.mktemp("large") / "model.safetensors"
    block = np.random.default_rng(0).standard_normal((1024, COLUMNS), np.float32) * 0.02
    content = block.astype(ml_dtypes.bfloat16).tobytes()
    header, end = {}, 0
    for name, shape in SHAPES.items():
        begin, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(end // len(content)):
            file.write(content)
    assert path.stat().st_size > LIMIT
    yield path
    path.unlink()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_peak_memory_does_not_grow_with_the_model(source: Path, tmp_path: Path, codec: str) -> None:
    # a shell between: the kernel counts what a process was before its exec, and this one may have loaded a lot
    python = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable]
    command = [*python, "-m", "mxconv.cli.main", "quantize", str(source), "-o", str(tmp_path / "p")]
    run = subprocess.run(
        [*command, "--codec", codec, "--threads", "2", "--json"], check=True, capture_output=True, text=True
    )
    result = json.loads(run.stdout.splitlines()[-1])
    print(f"{codec}: {result['peak_rss_bytes'] / 1e6:.0f} MB at {result['input_gigabytes_per_second']:.3f} GB/s")
    assert result["num_bytes_source"] > LIMIT
    assert result["peak_rss_bytes"] < LIMIT
    command = [*python, "-c", VERIFY, str(tmp_path / "p"), str(source)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"verify {codec}: {int(run.stdout) / 1e6:.0f} MB")
    assert int(run.stdout) < VERIFY_LIMIT
    for path in (tmp_path / "p").glob("*.safetensors"):
        path.unlink()
