"""Legacy PyTorch checkpoints (.bin, .pt): pickles, which can run code.

Only `torch.load(weights_only=True)` opens them.

This file alone in the package imports torch, and only when it is asked to open such a file.
"""

import importlib
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.regular_file import Look, check_regular_file, open_file
from mxconv.checkpoint.safetensors_header import DTYPES, TensorEntry
from mxconv.checkpoint.tensor import WeightFile
from mxconv.errors import CheckpointError, install_line

# torch's name to safetensors' name
_DTYPE_NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}

SAFE_TORCH = (2, 6)


class LegacyFile(WeightFile):
    """One file: a pickled dictionary of tensors, mapped into memory where its container allows.

    Entries have no place in the file that a reader could use: `begin` is 0 and `end` the tensor's length. Nothing is
    released: torch owns the map, and the system takes its pages back when it needs them.

    Raises:
        CheckpointError: torch is missing, or the file is damaged, wants to run code, or holds no tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found = {name: _as_array(name, tensor, path) for name, tensor in _load(path).items()}
        self._arrays = {name: array for name, (_, array) in found.items()}
        self.entries: Mapping[str, TensorEntry] = {
            name: TensorEntry(name, dtype, array.shape, 0, array.nbytes) for name, (dtype, array) in found.items()
        }
        self.look = Look.at(path)
        self.remember()

    @property
    def is_closed(self) -> bool:
        return len(self._arrays) < len(self.entries)

    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, read-only and uncopied, in the order of its own strides."""
        if name in self.entries and name not in self._arrays:
            raise ValueError(f"{self.path}: the checkpoint was closed")
        return self._arrays[name]

    def close(self) -> None:
        self._arrays.clear()


def _load(path: Path) -> dict[str, Any]:
    check_regular_file(path)
    torch = _import_torch(path)
    with open_file(path) as file:
        is_zip = file.read(4) == b"PK\x03\x04"  # torch.save before version 1.6 wrote a bare pickle
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a damaged pickle raises anything
        raise _load_error(path, error) from error
    if not isinstance(loaded, dict) or not loaded:
        number = f" of {len(loaded)} objects" if isinstance(loaded, dict | list | tuple) else ""
        raise CheckpointError(
            f"{path}: holds a {type(loaded).__name__}{number}; a dictionary of tensors is required. "
            "Export the model again with save_pretrained."
        )
    return loaded


def _import_torch(path: Path) -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise CheckpointError(
            f"{path}: a PyTorch {path.suffix} checkpoint, and torch is not installed; torch is required to read it. "
            + install_line("hf")
        ) from error
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < SAFE_TORCH:
        raise CheckpointError(
            f"{path}: torch {torch.__version__} is installed, whose weights_only can be made to run code "
            f"(CVE-2025-32434); 2.6 or newer is required for {path.suffix} files. Run: pip install 'torch>=2.6'"
        )
    return torch


def _load_error(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, pickle.UnpicklingError) and (wanted := re.search(r"GLOBAL (\S+)", str(error))):
        return CheckpointError(
            f"{path}: its pickle wants to use {wanted[1].rstrip('.')}, which may run code; only tensors are loaded "
            "(weights_only). Ask for a safetensors export, or convert it on a machine that you can afford to lose."
        )
    reason = f"{type(error).__name__}: {error}".split("\n")[0].split(". ")[0].removesuffix(": ")
    return CheckpointError(
        f"{path}: torch cannot read it ({reason}); a PyTorch checkpoint is required. Download or export the file again."
    )


def _as_array(name: object, tensor: Any, path: Path) -> tuple[str, NDArray[np.generic]]:
    """The safetensors dtype name and a read-only view, of the types that `MappedFile.view` gives."""
    torch = importlib.import_module("torch")
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise CheckpointError(
            f"{path}: {name!r} is a {type(tensor).__name__}; every entry must be a tensor under its name. "
            "Export the model again with save_pretrained."
        )
    torch_name = str(tensor.dtype).removeprefix("torch.")
    if torch_name not in _DTYPE_NAMES or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise CheckpointError(
            f"{path}: tensor {name!r} is {torch_name}, {tensor.layout} on {tensor.device}; a dense tensor of one of "
            f"{', '.join(_DTYPE_NAMES)} is required. Export the model again, as BF16 or F16."
        )
    dtype = DTYPES[_DTYPE_NAMES[torch_name]]
    plain = tensor.detach()
    if torch_name.startswith(("bfloat", "float8")):  # NumPy has no such types: go through integers
        plain = plain.view(torch.int16 if dtype.num_bits == 16 else torch.uint8)
    array: NDArray[np.generic] = plain.resolve_conj().resolve_neg().numpy().view(dtype.array_dtype)
    array.flags.writeable = False
    return dtype.name, array
