"""Files and tensors hashed in one pass, and files hashed while they are written."""

import hashlib
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import write_safetensors, write_sharded
from packages import quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion import source_hash
from mxconv.conversion.source_hash import SourceHashes
from mxconv.errors import CheckpointError
from mxconv.package.shard_files import ShardHash
from mxconv.package.shard_layout import plan_layout
from mxconv.package.stored import StoredArray
from mxconv.progress import silent
from mxconv.workers import Workers


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def hashes_of(source: Path) -> tuple[dict[str, str], dict[str, str | None]]:
    """By file and by tensor."""
    workers = Workers(2)
    with open_checkpoint(source) as checkpoint:
        hashes = SourceHashes(checkpoint, workers, silent)
        assert hashes.records is None
        heard: list[str] = []
        hashes.listen(heard.append)
        workers.finish_streams()
        assert hashes.records is not None
        assert all(record.num_bytes == (checkpoint.root / record.path).stat().st_size for record in hashes.records)
        tensors = {name: hashes.tensor(name) for name in checkpoint.tensors}
        assert sorted(heard) == sorted(name for name, digest in tensors.items() if digest)
        return {record.path: record.sha256 for record in hashes.records}, tensors


@pytest.mark.parametrize("kernel", ["numpy", None])
@pytest.mark.parametrize("window", [1, 64, 1000, 1 << 22])
def test_every_file_and_tensor_has_the_hash_of_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str | None, window: int
) -> None:
    if kernel is not None:
        monkeypatch.setenv("MXCONV_KERNEL", kernel)
    monkeypatch.setattr(source_hash, "WINDOW_BYTES", window)
    monkeypatch.setattr(source_hash, "PIECE_BYTES", 3 * window)
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (0, 4), (17,), (), (1, 64), (2, 100), (64, 2), (7,)]
    dtypes = [np.uint8, np.uint16, np.float32, ml_dtypes.bfloat16]
    tensors = {f"t{n}": rng.integers(0, 200, shape).astype(dtypes[n % 4]) for n, shape in enumerate(shapes)}
    source = write_sharded(tmp_path, tensors, 3)
    files, found = hashes_of(source)
    assert files == {path.name: sha256(path.read_bytes()) for path in source.iterdir()}
    assert found == {name: sha256(np.asarray(tensor).tobytes()) for name, tensor in tensors.items()}


def test_a_bin_checkpoint_is_hashed_as_a_file_only(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(4, 4, dtype=torch.float16)}, tmp_path / "pytorch_model.bin")
    files, tensors = hashes_of(tmp_path)
    assert files == {"pytorch_model.bin": sha256((tmp_path / "pytorch_model.bin").read_bytes())}
    assert tensors == {"w": None}


@pytest.mark.parametrize("seed", range(5))
def test_a_shard_is_hashed_in_order_while_its_arrays_are_completed_in_any(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed)
    arrays = {f"t{n}": (StoredArray(f"t{n}.x", "U8", (order.choice([0, 1, 7, 64, 500]),)),) for n in range(12)}
    shard = plan_layout({"s": arrays}, 10**9).shards[0]
    path = tmp_path / shard.file_name
    path.write_bytes(shard.header + bytes(shard.num_bytes - len(shard.header)))
    with path.open("r+b", buffering=0) as file:
        stream = ShardHash(shard, tmp_path)
        names = list(arrays)
        order.shuffle(names)
        assert stream.is_ready() and (shard.num_bytes == len(shard.header) or stream.advance())
        for name in names:
            array = arrays[name][0]
            file.seek(shard.offsets[array.name])
            file.write(order.randbytes(array.num_bytes))
            stream.complete([array.name, "another shard's"])
            while stream.is_ready():
                stream.advance()
        assert not stream.is_ready()
        assert stream.report() == sha256(path.read_bytes())


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_the_first_tensor_with_a_nonfinite_weight_is_named_and_nothing_is_left(
    tmp_path: Path, num_threads: int
) -> None:
    tensors = {f"w{n}": np.zeros((64, 64), np.float16) for n in range(9)}
    for name in ("w3", "w4", "w7"):
        tensors[name][5, 6] = np.inf
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"tensor w3 holds inf at index \[5, 6\]; finite weights are required"):
        quantize(source, tmp_path / "p", num_threads=num_threads)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
