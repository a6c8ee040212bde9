"""A forward pass of some tokens, recorded once: a replay reads its tokens and where they stand from fixed memory."""

from typing import TYPE_CHECKING, Any

import torch

from mxconv.gpu.recorded_call import RecordedCall
from mxconv.interop.transformers.cache_name import cache_name
from mxconv.interop.transformers.graphs.slab import KeyValueSlab

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_TOKENS = 16  # of a recorded pass; the kernels' own limit


class PassInputs:
    """What changes from replay to replay, at fixed places on a device.

    `tokens` (1, 16) int64, those that are absent being anything; `length` () int64, positions before them; `offset` ()
    int64, added to a position for its rotation; `is_visible` (capacity,) bool, False for padding.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.tokens = torch.zeros((1, MOST_TOKENS), dtype=torch.int64, device=device)
        self.length = torch.zeros((), dtype=torch.int64, device=device)
        self.offset = torch.zeros((), dtype=torch.int64, device=device)
        self.is_visible = torch.ones(capacity, dtype=torch.bool, device=device)
        self.places = torch.arange(capacity, device=device)


class RecordedPass:
    """The pass of `width` tokens behind at most `span - width` positions.

    Raises:
        Exception: whatever the model says to a cache of fixed size, or to being recorded.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        slab: KeyValueSlab,
        inputs: PassInputs,
        width: int,
        span: int,
        keeps_logits: bool,
        pool: Any,
    ) -> None:
        self._model, self._slab, self._inputs, self._width, self._span = model, slab, inputs, width, span
        self._options: dict[str, Any] = {"logits_to_keep": width} if keeps_logits else {}
        self._recorded = RecordedCall(slab.device, self._forward, pool)
        del self._model  # what is recorded needs its memory alone

    def replay(self) -> torch.Tensor:
        """(width, vocab_size) float32 logits, until the next replay of any pass."""
        self._recorded.replay()
        logits: torch.Tensor = self._recorded.result
        return logits

    def _forward(self) -> torch.Tensor:
        from mxconv.interop.transformers.graphs.slab_cache import SlabCache  # brings transformers

        inputs = self._inputs
        slots = inputs.places[: self._width] + inputs.length
        mask = (inputs.places[: self._span] <= slots[:, None]) & inputs.is_visible[: self._span]
        output = self._model(
            input_ids=inputs.tokens[:, : self._width],
            attention_mask=mask[None, None],
            position_ids=(slots + inputs.offset)[None],
            use_cache=True,
            return_dict=True,
            **{cache_name(): SlabCache(self._slab, slots, self._span)},
            **self._options,
        )
        logits: torch.Tensor = output.logits[0, -self._width :]
        return logits.float()
