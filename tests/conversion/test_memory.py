"""Memory stays flat: a checkpoint of 302 MB converts within 300 MB and is verified so; --memory makes slices small."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import files_of, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion import preparation
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import prepare
from mxconv.errors import MxconvError

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
WIDTH = 4096
SHAPES = {"model.embed_tokens.weight": (18_432, WIDTH)} | {
    f"model.layers.{n}.mlp.up_proj.weight": (9_216, WIDTH) for n in range(2)
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gaussian weights, one block of 8 MB over and over."""
    path = tmp_path_factory.mktemp("large") / "model.safetensors"
    block = np.random.default_rng(0).standard_normal((1024, WIDTH), np.float32) * 0.02
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
def test_peak_memory_does_not_grow_with_the_model(large: Path, tmp_path: Path, codec: str) -> None:
    # a shell between: the kernel counts what a process was before its exec, and this one may have loaded a lot
    python = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable]
    command = [*python, "-m", "mxconv.cli.main", "quantize", str(large), "-o", str(tmp_path / "p")]
    run = subprocess.run(
        [*command, "--codec", codec, "--threads", "2", "--json"], check=True, capture_output=True, text=True
    )
    result = json.loads(run.stdout.splitlines()[-1])
    print(f"{codec}: {result['peak_rss_bytes'] / 1e6:.0f} MB at {result['input_gigabytes_per_second']:.3f} GB/s")
    assert result["num_bytes_source"] > LIMIT
    assert result["peak_rss_bytes"] < LIMIT
    command = [*python, "-c", VERIFY, str(tmp_path / "p"), str(large)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"verify {codec}: {int(run.stdout) / 1e6:.0f} MB")
    assert int(run.stdout) < VERIFY_LIMIT
    for path in (tmp_path / "p").glob("*.safetensors"):
        path.unlink()


ROWS, COLUMNS, EXPERTS = 512, 2048, 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix, a stack of experts and a vector that is kept."""
    rng = np.random.default_rng(0)
    tensors = {
        "model.layers.0.self_attn.q_proj.weight": (ROWS, COLUMNS),
        "model.layers.0.mlp.experts.gate_up_proj": (EXPERTS, 128, 192),
        "model.layers.0.mlp.experts.down_proj": (EXPERTS, 96, 128),
        "model.embed_tokens.weight": (ROWS, COLUMNS),
        "model.norm.weight": (COLUMNS,),
    }
    arrays = {name: (rng.standard_normal(shape) * 0.02).astype(np.float16) for name, shape in tensors.items()}
    return write_safetensors(tmp_path_factory.mktemp("slices") / "m.safetensors", arrays)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_no_byte_depends_on_the_length_of_slices(source: Path, tmp_path: Path, codec: str) -> None:
    with open_checkpoint(source) as checkpoint:
        least = _least(source)
        plans = [s.plan for s in prepare(checkpoint, QuantizeOptions(codec=codec, memory_bytes=least)).surveys]  # type: ignore[arg-type]
    assert min(plan.slice_weights for plan in plans) <= 16 * COLUMNS
    quantize(source, tmp_path / "usual", codec=codec)
    quantize(source, tmp_path / "small", codec=codec, memory_bytes=least)
    assert files_of(tmp_path / "small") == files_of(tmp_path / "usual")


def test_too_little_is_refused_with_what_is_required(source: Path, tmp_path: Path) -> None:
    least = _least(source)
    with pytest.raises(MxconvError, match=rf"--memory {least - 1}: at least {least:,} bytes are required, for tensor "):
        quantize(source, tmp_path / "p", memory_bytes=least - 1)
    assert not list(tmp_path.iterdir())
    quantize(source, tmp_path / "p", memory_bytes=least)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_what_a_slice_takes_is_what_was_counted(
    source: Path, tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "numpy")  # whose arrays Python counts
    peaks = []
    for memory_bytes in (None, _least(source)):
        tracemalloc.start()
        quantize(source, tmp_path / str(memory_bytes), codec=codec, memory_bytes=memory_bytes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    tables = preparation.NUMPY_PROCESS_BYTES - preparation.PROCESS_BYTES
    assert peaks[1] < tables + preparation.NUMPY_WEIGHT_BYTES * 16 * COLUMNS
    assert peaks[1] < peaks[0] / 2


def _least(source: Path) -> int:
    """What is required, as the refusal of one byte says."""
    with open_checkpoint(source) as checkpoint, pytest.raises(MxconvError, match="at least") as refused:
        prepare(checkpoint, QuantizeOptions(memory_bytes=1))
    return int(str(refused.value).split("at least ")[1].split()[0].replace(",", ""))
