"""Keys and values of a text at places that stay the same, so that recorded launches find them."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers.cache_utils import DynamicCache


class KeyValueSlab:
    """Room for `capacity` positions of each layer, in the shapes of a cache that holds some.

    A text that is here grows unseen by its cache, which is shown the first positions when somebody wants to look.
    """

    def __init__(self, cache: "DynamicCache", capacity: int) -> None:
        """Allocate, zeros: what is masked is multiplied all the same."""
        self.capacity = capacity
        self.keys = [_room(layer.keys, capacity) for layer in cache.layers]
        self.values = [_room(layer.values, capacity) for layer in cache.layers]

    @staticmethod
    def bytes_for(cache: "DynamicCache", capacity: int) -> int:
        """That a slab would take."""
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return sum(tensor[:, :, :1].nbytes * capacity for tensor in tensors)

    @property
    def device(self) -> torch.device:
        """Of all layers."""
        return self.keys[0].device

    def fits(self, cache: "DynamicCache", capacity: int) -> bool:
        """Whether this cache could be held, with so many positions."""
        return self.capacity >= capacity and len(self.keys) == len(cache.layers) and all(
            _is_like(keys, layer.keys) and _is_like(values, layer.values)
            for keys, values, layer in zip(self.keys, self.values, cache.layers, strict=True)
        )  # fmt: skip

    def hold(self, cache: "DynamicCache") -> None:
        """Take in what the cache holds, which looks at it here from now on."""
        length = cache.get_seq_length()
        for keys, values, layer in zip(self.keys, self.values, cache.layers, strict=True):
            keys[:, :, :length].copy_(layer.keys)
            values[:, :, :length].copy_(layer.values)
        self.show(cache, length)

    def show(self, cache: "DynamicCache", length: int) -> None:
        """Let the cache be the first `length` positions."""
        for keys, values, layer in zip(self.keys, self.values, cache.layers, strict=True):
            layer.keys, layer.values = keys[:, :, :length], values[:, :, :length]

    def release(self, cache: "DynamicCache") -> None:
        """Give the cache memory of its own, since the next text comes here."""
        for keys, layer in zip(self.keys, cache.layers, strict=True):
            if layer.keys.data_ptr() == keys.data_ptr():
                layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def _room(held: torch.Tensor, capacity: int) -> torch.Tensor:
    return held.new_zeros((*held.shape[:2], capacity, held.shape[3]))


def _is_like(room: torch.Tensor, held: torch.Tensor) -> bool:
    shape = (*held.shape[:2], room.shape[2], held.shape[3])
    return room.shape == shape and room.dtype == held.dtype and room.device == held.device
