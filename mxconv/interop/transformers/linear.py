"""A linear layer on mxconv's kernels, for inference on the CPU: what its formats have in common.

The stored arrays of a package are the module's buffers, so `state_dict` saves them and `load_state_dict` brings them
back, whatever their lengths. Kernels read the buffers where they lie; float32 activations go to NumPy and back without
a copy.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mxconv.checkpoint.dtypes import DTYPES
from mxconv.engine.matrices import Matrices
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine
from mxconv.kernels.matrix import Matrix
from mxconv.package.stored import StoredArray

INPUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class KernelLinear(nn.Module):
    """What both layers have in common: `y = x W^T + bias`, W in a format of ours.

    Args:
        in_features: columns of W.
        out_features: rows of W.
        bias: added to the result; None without.
    """

    label = "linear"  # in messages

    def __init__(self, in_features: int, out_features: int, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bias: torch.Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._matrix: Matrix | None = None
        self._addresses: tuple[int, ...] = ()  # of the buffers under the matrix

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), in the dtype of `x`; products are rounded by our kernels.

        Raises:
            ModelError: `x` is not on the CPU, is no float of 16 to 64 bits, has another last axis, or wants a gradient.
        """
        self._check_input(x)
        rows = x.detach().to(torch.float32).reshape(-1, self.in_features).contiguous()
        if len(rows) == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        result = torch.from_numpy(self.matrix().multiply(rows.numpy()))
        if self.bias is not None:
            result += self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def matrix(self) -> Matrix:
        """What the kernels multiply, over this module's buffers; made again whenever these lie elsewhere.

        Raises:
            ModelError: a buffer is not what the format requires.
        """
        addresses = tuple(buffer.data_ptr() for buffer in self.buffers())  # the matrix keeps the old ones alive
        if self._matrix is None or addresses != self._addresses:
            self._matrix, self._addresses = self._make_matrix(Matrices(choose_engine())), addresses
        return self._matrix

    def _make_matrix(self, make: Matrices) -> Matrix:
        raise NotImplementedError

    def _arrays(self) -> tuple[StoredArray, ...]:
        """The buffers that the format requires."""
        raise NotImplementedError

    def _stored(self) -> dict[str, NDArray[Any]]:
        """The buffers as arrays, checked: a state dict may hold anything, and kernels trust what they read."""
        found = {}
        for array in self._arrays():
            name = array.name.removeprefix(".")
            buffer = getattr(self, name)
            dtype = DTYPES[array.dtype].array_dtype
            if not isinstance(buffer, torch.Tensor) or buffer.device.type != "cpu":
                raise ModelError(f"{self.label}: buffer {name} is not on the CPU, where its kernels run. Move it back.")
            content = buffer.numpy()
            content = content.view(np.uint16) if content.dtype == np.int16 else content
            if (content.dtype, content.shape) != (dtype, array.shape):
                raise ModelError(
                    f"{self.label}: buffer {name} is {content.dtype} {list(content.shape)}; {dtype} "
                    f"{list(array.shape)} is required. Load the state of a layer of this shape."
                )
            found[name] = np.ascontiguousarray(content)
        return found

    def _check_input(self, x: torch.Tensor) -> None:
        if x.device.type != "cpu":
            raise ModelError(f"{self.label}: input on {x.device}; its kernels run on the CPU. Move the model there.")
        if x.dtype not in INPUT_DTYPES:
            raise ModelError(
                f"{self.label}: input of {x.dtype}; float32, bfloat16, float16 or float64 is required. Convert it."
            )
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ModelError(
                f"{self.label}: input of shape {tuple(x.shape)}; a last axis of {self.in_features} is required."
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError(
                f"{self.label}: input that requires a gradient; this layer is for inference. Use torch.no_grad()."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Take buffers of any length: how many escapes there are is up to the weights."""
        for name in self._buffers:
            value = state_dict.get(prefix + name)
            if isinstance(value, torch.Tensor):
                self._buffers[name] = torch.empty_like(value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_matrix": None}  # a handle of the kernels cannot be copied

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
