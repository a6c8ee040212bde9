"""The package `dfloat11` beside our kernels: BF16 in about 11 bits, decoded into memory, multiplied by torch.

It has no product of its own: a hook before each layer decodes the layer's weights into a buffer, which torch then
multiplies with. Both are timed. What is called here is of its version 0.5: the encoder of `compress_model`, and the
hook that `load_and_replace_tensors` puts before a linear layer.

Source: DFloat11 (arXiv 2504.11651), Apache License 2.0.
"""

import contextlib
import importlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from mxconv.arrays import U16

THREADS, BYTES_PER_THREAD = (512,), 8  # as in its `compress_model`


def why_not(device: torch.device) -> str | None:
    """Why it cannot be measured; None where it can."""
    if device.type != "cuda":
        return "it runs on GPUs alone"
    try:
        importlib.import_module("dfloat11.dfloat11")
        importlib.import_module("cupy")
    except Exception as error:  # it loads machine code when it is imported
        return f"import dfloat11: {error}"
    return None


class DFloat11Matrix:
    """A linear layer as dfloat11 has it on a GPU."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], shape: tuple[int, int], shared_bytes: int) -> None:
        """Of arrays on the device, which are kept."""
        module = importlib.import_module("dfloat11.dfloat11")
        self._buffers, self._shape, self._shared_bytes = dict(buffers), shape, shared_bytes
        self._linear = nn.Linear(shape[1], shape[0], bias=False, device="meta")
        del self._linear.weight  # the hook puts it there
        for name, tensor in buffers.items():
            self._linear.register_buffer(name, tensor)
        self._linear.shared_mem_size = shared_bytes  # type: ignore[assignment]
        self._decode: Any = module.get_hook(THREADS, BYTES_PER_THREAD)
        self._external_stream: Any = importlib.import_module("cupy").cuda.ExternalStream

    @classmethod
    def encode(cls, patterns: U16, device: torch.device) -> "DFloat11Matrix":
        """(rows, columns) BF16 patterns by its own encoder: about a minute for 8192 x 8192."""
        module = importlib.import_module("dfloat11.dfloat11")
        weights = torch.from_numpy(patterns.view(np.int16).copy()).view(torch.bfloat16).flatten()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # tables, bars
            _, counter = module.get_codec(weights)
            codec, _, table = module.get_32bit_codec(counter)
            encoded, others, positions, gaps, _ = module.encode_weights([weights], codec, BYTES_PER_THREAD, THREADS[0])
            luts = module.get_luts(table)
        places = positions.numpy().view(np.uint32).astype(np.int64)
        buffers = {
            "luts": luts,
            "encoded_exponent": encoded,
            "sign_mantissa": others,
            "output_positions": positions.view(torch.uint8),
            "gaps": gaps,
        }
        shared_bytes = THREADS[0] * 4 + 4 + int(np.diff(places).max()) * 2
        shape = (patterns.shape[0], patterns.shape[1])
        return cls({name: tensor.to(device) for name, tensor in buffers.items()}, shape, shared_bytes)

    @property
    def num_bytes(self) -> int:
        """As stored; what is decoded is written and read besides."""
        return sum(tensor.nbytes for tensor in self._buffers.values())

    def copy(self) -> "DFloat11Matrix":
        """In memory of its own; what is decoded goes into one buffer of the package's."""
        buffers = {name: tensor.clone() for name, tensor in self._buffers.items()}
        return DFloat11Matrix(buffers, self._shape, self._shared_bytes)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T in BF16."""
        return torch.matmul(x, self.rebuild().T)

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) BF16, until the next one is decoded."""
        with self._external_stream(torch.cuda.current_stream().cuda_stream):  # torch's own, a graph's while recording
            self._decode(self._linear, None)
        weight = self._linear.weight
        assert isinstance(weight, torch.Tensor)
        return weight
