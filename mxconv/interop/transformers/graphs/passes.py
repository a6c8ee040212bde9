"""The recorded passes of a model, and the slab that they read: kept from text to text, made anew when it changes."""

import warnings
from typing import TYPE_CHECKING, Any

import torch

from mxconv.gpu.memory import RESERVE_BYTES, free_bytes
from mxconv.interop.transformers.graphs.recordable import ModelIdentity, is_recordable
from mxconv.interop.transformers.graphs.recorded_pass import MOST_TOKENS, PassInputs, RecordedPass
from mxconv.interop.transformers.graphs.slab import KeyValueSlab

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import DynamicCache

LEAST_SPAN = 256  # positions; a pass sees this, or twice as many, and so on
FIRST_POSITIONS = 8192  # of a slab at most, unless the text is longer than half of that: 1 GB in a model of 8 B


class RecordedPasses:
    """One model's at a time. Whoever decodes keeps them; a text begins with `begin`."""

    def __init__(self) -> None:
        self._identity: ModelIdentity | None = None
        self._is_refused = False
        self.close()

    def close(self) -> None:
        """Let go of the device's memory."""
        self._passes: dict[tuple[str, int, int], RecordedPass] = {}
        self._slab: KeyValueSlab | None = None
        self._pool: Any = None

    def begin(self, model: "PreTrainedModel", cache: "DynamicCache", most: int, keeps_logits: bool) -> bool:
        """Make ready for a text.

        Args:
            model: whose passes these are.
            cache: holds the prompt.
            most: positions that the text may come to; one that outgrows its slab begins again.
            keeps_logits: whether the model can leave logits out.

        Returns:
            Whether passes can be recorded; a warning has said why not, where that is not the model's kind.
        """
        if self._identity is None or not self._identity.is_of(model):
            self.close()
            self._identity, self._is_refused = ModelIdentity(model), False
        if self._is_refused or not is_recordable(model, cache):
            return False
        most = min(most, max(2 * cache.get_seq_length(), FIRST_POSITIONS))
        capacity = -(-(most + MOST_TOKENS) // LEAST_SPAN) * LEAST_SPAN
        if self._slab is None or not self._slab.fits(cache, capacity):
            self.close()
            num_bytes, free = KeyValueSlab.bytes_for(cache, capacity), free_bytes(model.device)
            if free is not None and num_bytes + RESERVE_BYTES > free:
                _warn(f"{capacity} positions of keys and values are {num_bytes / 1e9:.2f} GB; {free / 1e9:.2f} GB are "
                      "free. A smaller max_new_tokens needs less")  # fmt: skip
                return False
            self._slab = KeyValueSlab(cache, capacity)
            self._inputs = PassInputs(capacity, self._slab.device)
            self._pool = None if model.device.type == "cpu" else torch.cuda.graph_pool_handle()
        self._slab.hold(cache)
        self._model, self._keeps_logits = model, keeps_logits
        return True

    @property
    def is_ready(self) -> bool:
        """Whether what has begun can go on."""
        return not self._is_refused

    def has_room(self, length: int) -> bool:
        """Whether a pass may follow so many positions."""
        return self._slab is not None and length + MOST_TOKENS <= self._slab.capacity

    def place(self, offset: int, is_visible: torch.Tensor | None) -> None:
        """Where a text stands.

        Args:
            offset: from a place in the cache to the position that the model is told.
            is_visible: (length,) bool, False for padding; None without. What follows is visible.
        """
        self._inputs.offset.fill_(offset)
        self._inputs.is_visible.fill_(True)
        if is_visible is not None:
            self._inputs.is_visible[: len(is_visible)] = is_visible.to(self._inputs.is_visible.device)

    def evaluate(self, tokens: torch.Tensor, length: int, level: str) -> torch.Tensor | None:
        """Evaluate tokens behind the first positions of the text that has begun.

        Args:
            tokens: (1, num_tokens), at most 16.
            length: positions before them, which the slab holds.
            level: of the model, "target" or "draft".

        Returns:
            (num_tokens, vocab_size) float32 logits, until the next pass; None where this model cannot be recorded, of
            which a warning has said why. What the slab holds is as it was.
        """
        assert self._slab is not None
        num_tokens = tokens.shape[1]
        width = _power_of_two(num_tokens)
        span = min(max(_power_of_two(length + width), LEAST_SPAN), self._slab.capacity)
        self._inputs.tokens[:, :num_tokens] = tokens
        self._inputs.length.fill_(length)
        key = level, width, span
        if key not in self._passes:
            try:
                self._passes[key] = RecordedPass(
                    self._model, self._slab, self._inputs, width, span, self._keeps_logits, self._pool
                )
            except Exception as error:  # of the model's own code, which transformers runs without a graph
                self._is_refused = True
                _warn(f"{type(self._model).__name__}: {type(error).__name__}: {error}")
                return None
        return self._passes[key].replay()[:num_tokens]

    def show(self, cache: "DynamicCache", length: int) -> None:
        """Let the cache look at the first positions of the text."""
        assert self._slab is not None
        self._slab.show(cache, length)
        if self._is_refused:
            self.close()  # the cache keeps what it looks at

    def release(self, cache: "DynamicCache") -> None:
        """Give a text's cache memory of its own, since the next text comes here."""
        if self._slab is not None:
            self._slab.release(cache)


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def _warn(reason: str) -> None:
    warnings.warn(f"passes are not recorded as CUDA graphs, but launched one by one: {reason}.", RuntimeWarning, 2)
