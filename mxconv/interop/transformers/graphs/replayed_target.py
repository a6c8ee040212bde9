"""A target whose short passes behind the prompt are replays of recorded ones."""

from typing import TYPE_CHECKING, Any

import torch

from mxconv.interop.transformers.graphs.passes import RecordedPasses
from mxconv.interop.transformers.graphs.recorded_pass import MOST_TOKENS
from mxconv.interop.transformers.target import TorchTarget

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ReplayedTarget(TorchTarget):
    """As `TorchTarget`; what cannot be recorded is launched as there.

    Args:
        model: as there.
        input_ids: as there.
        model_kwargs: as there.
        passes: recorded ones, of this model or another.
        max_length: of the text, prompt included.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        input_ids: torch.Tensor,
        model_kwargs: dict[str, Any],
        passes: RecordedPasses,
        max_length: int,
    ) -> None:
        super().__init__(model, input_ids, model_kwargs)
        self._passes, self._max_length = passes, max_length
        self._num_held: int | None = None  # positions in the slab; None while they are in the cache

    @property
    def length(self) -> int:
        """Positions in the cache, or in the slab that stands for it."""
        return super().length if self._num_held is None else self._num_held

    def extend(self, tokens: torch.Tensor, num_logits: int) -> torch.Tensor:
        """As `TorchTarget.extend`."""
        is_short = tokens.shape[1] <= MOST_TOKENS
        if self._num_held is not None and is_short and self._passes.has_room(self._num_held):
            logits = self._passes.evaluate(tokens, self._num_held, self.level)
            if logits is not None:
                self._num_held += tokens.shape[1]
                self.num_replays += 1
                return logits[-num_logits:].to(copy=True, device=tokens.device)
        may_hold = self._passes.is_ready if self._num_held is not None else self.length < self._prompt.shape[1]
        self._leave()
        launched = super().extend(tokens, num_logits)
        if may_hold:
            self._enter()
        return launched

    def rewind(self, length: int) -> None:
        """As `TorchTarget.rewind`."""
        if self._num_held is None:
            super().rewind(length)
        else:
            self._num_held = length

    def finish(self) -> None:
        """As there: the cache gets memory of its own, since the next text comes to the slab."""
        if self._num_held is not None:
            self._leave()
            self._passes.release(self.cache)

    def _enter(self) -> None:
        if self._passes.begin(self.model, self.cache, self._max_length, self._keeps_logits):
            self._num_held = super().length
            length = self._prompt.shape[1]
            offset = 0 if self._positions is None else int(self._positions_of(length)[0, -1]) + 1 - length
            self._passes.place(offset, None if self._mask is None else self._mask[0, :length].bool())

    def _leave(self) -> None:
        """The cache holds what the slab does: it looks at it."""
        if self._num_held is not None:
            self._passes.show(self.cache, self._num_held)
            self._num_held = None
