"""Whether the passes of a model can be recorded, and whether it is still the one that was."""

import inspect
import weakref
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache

DEVICE_TYPES = ("cuda",)  # where there is something to record


def is_recordable(model: "PreTrainedModel", cache: "DynamicCache") -> bool:
    """Whether passes of this model can be told masks and positions, and always do the same.

    One GPU, attention by torch's `scaled_dot_product_attention`, no dropout, no adapters that come and go, and a cache
    that keeps all of every layer.
    """
    from transformers.cache_utils import DynamicLayer

    devices = {parameter.device for parameter in model.parameters()}
    return (
        len(devices) == 1
        and devices.pop().type in DEVICE_TYPES
        and getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None) == "sdpa"
        and "position_ids" in inspect.signature(model.forward).parameters
        and not model.training
        and not hasattr(model, "peft_config")
        and all(type(layer) is DynamicLayer and layer.is_initialized for layer in cache.layers)
    )


class ModelIdentity:
    """What recorded passes depend on: modules, where their tensors lie, and their levels."""

    def __init__(self, model: nn.Module) -> None:
        self._leaves = [weakref.ref(leaf) for leaf in _leaves(model)]
        self._state = _state(model)

    def is_of(self, model: nn.Module) -> bool:
        """Whether nothing of it was exchanged."""
        leaves = _leaves(model)
        return (
            len(leaves) == len(self._leaves)
            and all(known() is leaf for known, leaf in zip(self._leaves, leaves, strict=True))
            and self._state == _state(model)
        )


def _leaves(model: nn.Module) -> list[nn.Module]:
    """Modules without others in them: what wraps a layer, as a draft beside it does, may come and go."""
    return [module for module in model.modules() if next(module.children(), None) is None]


def _state(model: nn.Module) -> list[object]:
    tensors = [*model.parameters(), *model.buffers()]
    return [*(tensor.data_ptr() for tensor in tensors), *(getattr(leaf, "level", None) for leaf in _leaves(model))]
