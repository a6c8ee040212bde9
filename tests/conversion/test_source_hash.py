"""The hashes of files and tensors: of the source, and of shards while they are written."""

import hashlib
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import write_safetensors, write_sharded
from packages import quantize

from mxconv.errors import CheckpointError
from mxconv.package.growing_shard import ArrayPlace, EncodedTensor, FolderSink, GrowingShard, Write
from mxconv.package.manifest import Manifest
from mxconv.package.shard_layout import plan_layout
from mxconv.package.stored import StoredArray


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def recorded(manifest: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    """The hashes of the source's files and of its tensors."""
    return (
        {record.path: record.sha256 for record in manifest.source.files},
        {record.name: record.sha256 for record in manifest.tensors},
    )


@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_file_and_tensor_has_the_hash_of_its_bytes(tmp_path: Path, num_threads: int) -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 5), (0, 4), (17,), (), (1, 64), (2, 100), (64, 2), (7,)]
    dtypes = [np.uint8, np.uint16, np.float32, ml_dtypes.bfloat16]
    tensors = {f"t{n}": rng.integers(0, 200, shape).astype(dtypes[n % 4]) for n, shape in enumerate(shapes)}
    tensors["w"] = rng.standard_normal((300, 70)).astype(ml_dtypes.bfloat16)
    source = write_sharded(tmp_path / "m", tensors, 3)
    manifest = quantize(source, tmp_path / "p", num_threads=num_threads, skip=("t*",))
    files, found = recorded(manifest)
    assert files == {path.name: sha256(path.read_bytes()) for path in source.iterdir()}
    assert found == {name: sha256(np.asarray(tensor).tobytes()) for name, tensor in tensors.items()}


def test_a_bin_checkpoint_is_hashed_as_a_file_and_by_its_tensors(tmp_path: Path) -> None:
    weights = torch.arange(4096).reshape(64, 64).to(torch.float16)
    torch.save({"w": weights}, tmp_path / "pytorch_model.bin")
    files, tensors = recorded(quantize(tmp_path / "pytorch_model.bin", tmp_path / "p"))
    assert files == {"pytorch_model.bin": sha256((tmp_path / "pytorch_model.bin").read_bytes())}
    assert tensors == {"w": sha256(weights.numpy().tobytes())}


@pytest.mark.parametrize("seed", range(5))
def test_a_shard_is_hashed_in_order_while_its_arrays_are_written_in_any(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed)
    layout = plan_layout(
        {"s": {f"t{n}": (StoredArray(f"t{n}.x", "U8", (order.choice([0, 1, 7, 64, 500]),)),) for n in range(12)}}, 10**9
    )
    (shard,) = layout.shards
    growing = GrowingShard(shard, tmp_path, layout.tensors[shard.file_name])
    names = list(layout.arrays)
    order.shuffle(names)
    for number, name in enumerate(names):
        (array,) = layout.arrays[name]

        def encode(write: Write, name: str = name, array: StoredArray = array) -> list[EncodedTensor]:
            write(array.name, 0, np.frombuffer(order.randbytes(array.num_bytes), np.uint8))
            return [EncodedTensor(name, "", {})]

        FolderSink(tmp_path, {array.name: ArrayPlace(shard.file_name, shard.offsets[array.name])}).take(encode)
        assert growing.finish(EncodedTensor("another shard's", "", {})) is None
        finished = growing.finish(EncodedTensor(name, "", {}))
        assert (finished is None) == (number < len(names) - 1)
    assert finished is not None
    assert [each.name for each in finished.tensors] == names
    assert finished.file.sha256 == sha256((tmp_path / shard.file_name).read_bytes())


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
