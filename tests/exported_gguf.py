"""Exported files, read by the gguf library."""

from pathlib import Path

import gguf
import numpy as np


def read(path: Path) -> dict[str, gguf.ReaderTensor]:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert all(tensor.data_offset % 32 == 0 for tensor in tensors.values())
    return tensors


def all_values(path: Path) -> dict[str, np.ndarray]:
    return {name: values_of(tensor) for name, tensor in read(path).items()}


def values_of(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
