"""The matrices of all experts of a layer as one tensor of three dimensions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mxconv.arrays import U8
from mxconv.errors import ModelError
from mxconv.interop.gguf.gguf_tensor import GgufTensor, GgufType

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class StackedTensor:
    """To write, one matrix behind another; `shape` is (num_experts, out_features, in_features)."""

    name: str
    shape: tuple[int, ...]
    type: GgufType
    experts: Sequence[GgufTensor]

    @classmethod
    def of(cls, name: str, experts: dict[int, GgufTensor], num_experts: int) -> "StackedTensor":
        """Put some together.

        Raises:
            ModelError: one is missing, or they are of several shapes or types.
        """
        if missing := sorted(set(range(num_experts)) - set(experts)):
            raise ModelError(
                f"{name}: expert {missing[0]} is missing; all {num_experts} are required. Convert the model again."
            )
        parts = [experts[number] for number in range(num_experts)]
        kinds = {(part.shape, part.type) for part in parts}
        if len(kinds) > 1:
            raise ModelError(
                f"{name}: experts of {len(kinds)} shapes or types; one is required. Export with --to safetensors."
            )
        return cls(name, (num_experts, *parts[0].shape), parts[0].type, parts)

    @property
    def num_bytes(self) -> int:
        return sum(expert.num_bytes for expert in self.experts)

    @property
    def ggml_type(self) -> "GGMLQuantizationType":
        return self.experts[0].ggml_type

    def pieces(self) -> Iterator[U8]:
        """The bytes in order, some megabytes at a time."""
        return chain.from_iterable(expert.pieces() for expert in self.experts)
