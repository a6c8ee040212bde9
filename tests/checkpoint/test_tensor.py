"""Tensors by rows, their memory, and hashes of files."""

import hashlib
import mmap
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_raw_safetensors, write_safetensors

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import CheckpointError

EXAMPLES = {
    "bf16": np.arange(12).reshape(4, 3).astype(ml_dtypes.bfloat16),
    "f16": np.arange(12, dtype=np.float16).reshape(4, 3),
    "f32": np.arange(12, dtype=np.float32).reshape(4, 3),
    "f8": np.arange(12).reshape(4, 3).astype(ml_dtypes.float8_e4m3fn),
    "i64": np.arange(12).reshape(4, 3),
    "bool": np.arange(12).reshape(4, 3) % 2 == 0,
    "vector": np.arange(5, dtype=np.float32),
    "scalar": np.array(2.5, np.float32),
    "no rows": np.zeros((0, 7), np.float16),
    "no columns": np.zeros((7, 0), np.float32),
}


def test_rows_are_read_only_views_of_the_map_in_the_promised_types(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", EXAMPLES)
    promised = {"bf16": np.uint16, "f16": np.uint16, "f8": np.uint8, "no rows": np.uint16}
    with open_checkpoint(path) as checkpoint:
        for name, expected in EXAMPLES.items():
            tensor = checkpoint.tensors[name]
            dtype = promised.get(name, expected.dtype.type)
            expected = expected.view(dtype)
            whole = tensor.array()
            assert whole.dtype == dtype and not whole.flags.writeable and not whole.flags.owndata
            np.testing.assert_array_equal(whole, expected)
            assert (tensor.num_bytes, tensor.num_elements) == (expected.nbytes, expected.size)
            assert tensor.path == path
            for start, stop in [(0, 0), (0, 1), (1, 3), (0, 4)] if expected.shape[:1] == (4,) else []:
                rows = tensor.rows(start, stop)
                np.testing.assert_array_equal(rows, expected[start:stop])
                assert rows.ctypes.data == whole.ctypes.data + start * whole.strides[0]
        assert repr(checkpoint.tensors["bf16"]) == "SourceTensor('bf16', BF16, [4, 3])"
        del whole, rows


@pytest.mark.parametrize(("name", "start", "stop"), [("scalar", 0, 1), ("f32", -1, 2), ("f32", 0, 5), ("f32", 3, 2)])
def test_rows_outside_the_tensor_are_refused(tmp_path: Path, name: str, start: int, stop: int) -> None:
    with open_checkpoint(write_safetensors(tmp_path / "a.safetensors", EXAMPLES)) as checkpoint:
        message = rf"tensor '{name}' of shape \(.*\) has no rows \[{start}, {stop}\)"
        with pytest.raises(ValueError, match=message):
            checkpoint.tensors[name].rows(start, stop)


def test_tensors_at_odd_addresses_are_read(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    payload = b"x" + np.array([1.5, -2.0], np.float32).tobytes()
    with open_checkpoint(write_raw_safetensors(tmp_path / "a.safetensors", header, payload)) as checkpoint:
        assert checkpoint.tensors["b"].rows(0, 2).tolist() == [1.5, -2.0]


def test_elements_smaller_than_a_byte_stay_packed(tmp_path: Path) -> None:
    header = {
        "even": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]},
        "odd": {"dtype": "F4", "shape": [2, 3], "data_offsets": [4, 7]},
    }
    path = write_raw_safetensors(tmp_path / "a.safetensors", header, bytes(range(7)))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["even"].rows(1, 2).tolist() == [[2, 3]]
        assert checkpoint.tensors["even"].num_elements == 8
        with pytest.raises(CheckpointError) as caught:
            checkpoint.tensors["odd"].array()
    assert str(caught.value) == (
        f"{path}: tensor 'odd': F4 of shape [2, 3] has rows of 12 bits; rows must be whole bytes. "
        "Leave this tensor out."
    )


def test_views_outlive_the_checkpoint_and_reading_after_it_is_refused(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", EXAMPLES)
    with open_checkpoint(path) as checkpoint:
        rows = checkpoint.tensors["f32"].rows(1, 2)
    assert rows.tolist() == [[3, 4, 5]]
    with pytest.raises(ValueError, match=re.escape(f"{path}: the checkpoint was closed")):
        checkpoint.tensors["f32"].rows(1, 2)
    checkpoint.close()


def test_releasing_keeps_values_and_takes_any_part(tmp_path: Path) -> None:
    big = np.arange(3 * mmap.PAGESIZE, dtype=np.float32).reshape(-1, 16)
    with open_checkpoint(write_safetensors(tmp_path / "a.safetensors", {**EXAMPLES, "big": big})) as checkpoint:
        for tensor in checkpoint.tensors.values():
            before = tensor.array().copy()
            tensor.release()
            if tensor.shape:
                tensor.release(1)
                tensor.release(0, 1)
            np.testing.assert_array_equal(tensor.array(), before)


def test_a_file_is_hashed_in_pieces_and_progress_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"a" * 3_000_000)
    pieces: list[int] = []
    digest = sha256_file(path, pieces.append)
    assert len(pieces) > 1 and sum(pieces) == 3_000_000
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(CheckpointError, match="no: no such file; a readable file is required"):
        sha256_file(tmp_path / "no")
