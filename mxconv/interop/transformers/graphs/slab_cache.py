"""What a model takes for its KV cache while a pass is recorded: it writes into a slab and reads a span of it."""

from typing import Any

import torch
from transformers.cache_utils import Cache

from mxconv.interop.transformers.graphs.slab import KeyValueSlab


class SlabCache(Cache):  # type: ignore[misc]
    """Places of a slab for the tokens of one pass.

    Args:
        slab: where keys and values lie.
        slots: (num_tokens,) int64 on the device: where those of this pass go.
        span: positions from the first on that attention sees, masked.
    """

    def __init__(self, slab: KeyValueSlab, slots: torch.Tensor, span: int) -> None:
        super().__init__(layers=[])
        self._slab, self._slots, self._span = slab, slots, span

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (1, heads, num_tokens, head_dim) of a layer; returns (1, heads, span, head_dim)."""
        keys, values = self._slab.keys[layer_idx], self._slab.values[layer_idx]
        keys.index_copy_(2, self._slots, key_states)
        values.index_copy_(2, self._slots, value_states)
        return keys[:, :, : self._span], values[:, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """() int64 on the device: a number would be recorded as it is now."""
        return self._slots[0]
