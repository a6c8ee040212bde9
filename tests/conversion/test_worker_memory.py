"""`--memory`: slices become small, no byte of a package changes, and what is too little is refused with what is not."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import files_of, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion import worker_memory
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import prepare
from mxconv.errors import MxconvError

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
    tables = worker_memory.NUMPY_PROCESS_BYTES - worker_memory.PROCESS_BYTES
    assert peaks[1] < tables + worker_memory.NUMPY_WEIGHT_BYTES * 16 * COLUMNS
    assert peaks[1] < peaks[0] / 2


def test_the_expert_that_is_read_counts_beside_its_slices(source: Path) -> None:
    process, weight = worker_memory._rates()
    required = process + 2 * 128 * 192 + weight * 16 * 128
    with open_checkpoint(source) as checkpoint:
        options = {"skip": ("*q_proj*",), "memory_bytes": 1}
        with pytest.raises(MxconvError, match=rf"{required:,} bytes are required, for tensor \S*gate_up_proj of shape"):
            prepare(checkpoint, QuantizeOptions(**options))  # type: ignore[arg-type]


def _least(source: Path) -> int:
    """What is required, as the refusal of one byte says."""
    with open_checkpoint(source) as checkpoint, pytest.raises(MxconvError, match="at least") as refused:
        prepare(checkpoint, QuantizeOptions(memory_bytes=1))
    return int(str(refused.value).split("at least ")[1].split()[0].replace(",", ""))
