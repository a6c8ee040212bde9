import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import CheckpointError

torch = pytest.importorskip("torch", reason="torch reads .bin checkpoints")


def save(path: Path, entries: object, *, as_zip: bool = True) -> Path:
    torch.save(entries, path, _use_new_zipfile_serialization=as_zip)
    return path


def error_of(source: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(source)
    return str(caught.value)


def examples() -> dict[str, Any]:
    values = torch.arange(12).reshape(4, 3)
    return {
        "bf16": values.to(torch.bfloat16),
        "f16": values.to(torch.float16),
        "f32": values.to(torch.float32),
        "f8": values.to(torch.float8_e4m3fn),
        "i64": values,
        "flags": values % 2 == 0,
        "transposed": values.to(torch.bfloat16).t(),
        "parameter": torch.nn.Parameter(values.to(torch.float32)),
        "scalar": torch.tensor(2.5),
        "no rows": torch.zeros(0, 7),
    }


@pytest.mark.parametrize("as_zip", [True, False])
def test_tensors_of_both_containers_are_read_in_the_types_of_safetensors(tmp_path: Path, as_zip: bool) -> None:
    saved = examples()
    if not as_zip:
        del saved["f8"]  # torch itself cannot read it back
    path = save(tmp_path / "pytorch_model.bin", saved, as_zip=as_zip)
    promised = {"bf16": "BF16", "f16": "F16", "f32": "F32", "f8": "F8_E4M3", "i64": "I64", "flags": "BOOL"}
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.container == ".bin" and checkpoint.weight_files == (path,)
        assert list(checkpoint.tensors) == sorted(saved)
        for name, expected in saved.items():
            tensor = checkpoint.tensors[name]
            assert tensor.dtype == promised.get(name, tensor.dtype)
            array = tensor.array()
            assert array.shape == tuple(expected.shape) and not array.flags.writeable
            assert array.tobytes() == expected.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            tensor.release()
            assert tensor.array().tobytes() == array.tobytes()
        assert checkpoint.tensors["bf16"].array().dtype == np.uint16
        assert checkpoint.tensors["transposed"].rows(1, 2).shape == (1, 4)
        assert checkpoint.tensors["transposed"].num_bytes == 24
        array = checkpoint.tensors["f32"].array()
    assert array[0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: the checkpoint was closed"):
        checkpoint.tensors["f32"].array()


def test_sharded_bins_are_read_through_their_index(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model-1.bin", {"a": torch.ones(2)})
    save(tmp_path / "pytorch_model-2.bin", {"b": torch.zeros(2)})
    save(tmp_path / "training_args.bin", {"never": "read"})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a", "b"] and checkpoint.index_file == index
        assert checkpoint.container == ".bin"


class Attack:
    """A pickle that would make a file if it were loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused_and_does_not_run(tmp_path: Path, as_zip: bool) -> None:
    victim = tmp_path / "victim"
    path = save(tmp_path / "pytorch_model.bin", {"a": torch.ones(2), "b": Attack(victim)}, as_zip=as_zip)
    assert error_of(tmp_path) == (
        f"{path}: its pickle wants to use posix.mkdir, which may run code; only tensors are loaded (weights_only). "
        "Ask for a safetensors export, or convert it on a machine that you can afford to lose."
    )
    assert not victim.exists()


def test_without_a_torch_that_is_safe_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "pytorch_model.bin", {"a": torch.ones(2)})
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    assert error_of(tmp_path) == (
        f"{path}: torch 2.5.1+cpu is installed, whose weights_only can be made to run code (CVE-2025-32434); "
        "2.6 or newer is required for .bin files. Run: pip install 'torch>=2.6'"
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    assert error_of(tmp_path) == (
        f"{path}: a PyTorch .bin checkpoint, and torch is not installed; torch is required to read it. "
        "Run: pip install '.[hf]' in mxconv's folder, or pip install 'FILE[hf]' with its wheel."
    )


NO_TENSOR, DENSE = "every entry must be a tensor under its name. ", "a dense tensor of one of bfloat16, float16, "


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([1, 2], "holds a list of 2 objects; a dictionary of tensors is required. "),
        ({}, "holds a dict of 0 objects; a dictionary of tensors is required. "),
        (torch.ones(3), "holds a Tensor; a dictionary of tensors is required. "),
        ({"model": {"a": torch.ones(1)}}, f"'model' is a dict; {NO_TENSOR}"),
        ({5: torch.ones(1)}, f"5 is a Tensor; {NO_TENSOR}"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, f"tensor 'a' is complex128, torch.strided on cpu; {DENSE}"),
        ({"a": torch.ones(2, device="meta")}, f"tensor 'a' is float32, torch.strided on meta; {DENSE}"),
        (b"", "torch cannot read it ("),
        (b"hello world", "torch cannot read it ("),
        (b"PK\x03\x04 no zip", "torch cannot read it ("),
    ],
)
def test_what_is_no_dictionary_of_tensors_is_refused(tmp_path: Path, entries: Any, message: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    if isinstance(entries, bytes):
        path.write_bytes(entries)
    else:
        save(path, entries)
    error = error_of(tmp_path)
    assert error.startswith(f"{path}: {message}")
    again = r"Export the model again|Error(: .+)?\); a PyTorch checkpoint is required\. Download or export the file"
    assert re.search(again, error)
