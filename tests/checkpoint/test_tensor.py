"""Tensors by rows, stacks of experts, their memory, and hashes of files."""

import hashlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_raw_safetensors, write_safetensors
from hypothesis import given
from hypothesis import strategies as st

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.stacked import EXPERT_NAMES, StackedExperts, stacked_experts
from mxconv.checkpoint.tensor import mapped_files
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


def test_files_are_mapped_until_they_are_closed(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": np.zeros(3, np.float32)})
    with open_checkpoint(tmp_path), open_checkpoint(tmp_path):
        assert [file.path for file in mapped_files() if tmp_path in file.path.parents] == [
            tmp_path / "model.safetensors"
        ] * 2
    assert not [file for file in mapped_files() if tmp_path in file.path.parents]


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


LAYER = "model.layers.0.mlp"
GATED = [(names.first, names.second) for names in EXPERT_NAMES]
size = st.integers(1, 9)


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]


def found(first: tuple[int, ...], second: tuple[int, ...], names: tuple[str, str] = GATED[0]) -> list[StackedExperts]:
    """What is found of a layer's two stacks, among other tensors."""
    tensors = {LAYER + names[0]: first, LAYER + names[1]: second, "model.norm.weight": (4,), "conv.weight": (2, 3, 4)}
    stacks = stacked_experts({name: Shape(shape) for name, shape in tensors.items()})
    assert stacks.keys() in ({LAYER + names[0], LAYER + names[1]}, set())
    return list(stacks.values())


@pytest.mark.parametrize("names", GATED)
@given(size, size, size)
def test_shapes_of_gated_experts_say_which_way_they_lie(
    names: tuple[str, str], num_experts: int, hidden: int, own: int
) -> None:
    first, second = found((num_experts, 2 * own, hidden), (num_experts, hidden, own), names)
    assert (first.axes, first.matrix_shape, second.matrix_shape) == ("out_in", (2 * own, hidden), (hidden, own))
    first, second = found((num_experts, hidden, 2 * own), (num_experts, own, hidden), names)
    assert (first.axes, first.matrix_shape, second.matrix_shape) == ("in_out", (2 * own, hidden), (hidden, own))


def test_stacks_without_gates_lie_as_the_table_says() -> None:
    attention = (".self_attention.experts.input_linear.weight", ".self_attention.experts.output_linear.weight")
    assert [stack.axes for stack in found((4, 32, 64), (4, 64, 32), attention)] == ["out_in", "out_in"]
    assert found((4, 32, 64), (4, 64, 32)) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((4, 6, 8), (4, 8, 4)),  # no way fits
        ((4, 6, 8), (3, 8, 3)),  # another number of experts
        ((6, 8), (8, 3)),
        ((4, 6, 8, 1), (4, 8, 3, 1)),
        ((0, 6, 8), (0, 8, 3)),
        ((4, 0, 0), (4, 0, 0)),
    ],
)
def test_shapes_that_do_not_belong_together_are_no_stacks(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert found(first, second) == []


def test_one_stack_without_the_other_is_none() -> None:
    assert stacked_experts({f"{LAYER}.experts.gate_up_proj": Shape((4, 6, 8))}) == {}


@given(size, st.integers(1, 40), size, st.sampled_from(["out_in", "in_out"]))
def test_experts_lie_one_below_the_other_in_whole_tiles(num_experts: int, rows: int, columns: int, axes: str) -> None:
    shape = (num_experts, rows, columns) if axes == "out_in" else (num_experts, columns, rows)
    stack = StackedExperts(shape, axes)  # type: ignore[arg-type]
    assert stack.matrix_shape == (rows, columns)
    ends = [stack.tiles(expert) for expert in range(num_experts)]
    assert [end for _, end in ends] == [*(first for first, _ in ends[1:]), stack.stored_shape[0] // 16]
    assert 16 * (ends[0][1] - 1) < rows <= 16 * ends[0][1] and ends[0][0] == 0
