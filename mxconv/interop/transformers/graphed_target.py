"""Passes of a torch model over few tokens as CUDA graphs, so that Python and its launches are not on a pass's way.

A graph is the model's pass over 1, 2, 4, 8 or 16 tokens at one level, on a static KV cache whose length it reads from
the device. It is captured when such a pass is first wanted, and outlasts the text. Where fewer tokens come, others
follow them: what these write into the cache lies beyond the text, and is written over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from mxconv.errors import ModelError
from mxconv.gpu.gpu_linear import LeveledModule
from mxconv.interop.transformers.torch_target import TorchTarget, cache_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WIDTHS = (1, 2, 4, 8, 16)  # tokens of a graph's pass
NUM_WARMUPS = 2  # passes before a capture, which compile kernels and choose algorithms
ATTENTIONS = ("sdpa", "eager")  # that take a mask
LEAST_POSITIONS = 1024  # of a cache, so that a longer text seldom needs another one


class PassGraphs:
    """The graphs of a model, and the KV cache that they read and write.

    Args:
        model: on a GPU; on the CPU a graph runs the pass again, which is how this is tested.
        num_positions: that the cache has room for, besides padding.

    Raises:
        ModelError: the model has sliding windows or recurrent layers, or an attention that takes no mask.
    """

    def __init__(self, model: "PreTrainedModel", num_positions: int) -> None:
        from transformers.cache_utils import StaticCache, StaticLayer

        self.model, self.num_positions = model, max(num_positions, LEAST_POSITIONS)
        config = model.config.get_text_config(decoder=True)
        self.cache = StaticCache(config=config, max_cache_len=self.num_positions + WIDTHS[-1])
        attention, kinds = config._attn_implementation, {type(layer) for layer in self.cache.layers}
        if kinds != {StaticLayer} or attention not in ATTENTIONS:
            found = f"{', '.join(sorted(kind.__name__ for kind in kinds))} and attention {attention!r}"
            raise ModelError(
                f"{model.config.name_or_path or type(model).__name__}: {found}; full attention in every layer, by "
                f"{' or '.join(ATTENTIONS)}, is required for CUDA graphs. Leave graphs=True out."
            )
        self._length = torch.zeros((), dtype=torch.long, device=model.device)
        self._replays: dict[tuple[str, int], tuple[Callable[[], object], torch.Tensor, torch.Tensor]] = {}
        self._kept: list[Any] = []  # modules whose arrays the graphs read

    def set_length(self, length: int) -> None:
        """Let the next pass begin at a position."""
        self._length.fill_(length)
        if self.cache.layers[0].is_initialized:
            torch._foreach_copy_(self._lengths(), [self._length] * len(self.cache.layers))

    def logits(self, tokens: torch.Tensor, length: int, level: str) -> torch.Tensor:
        """Evaluate (1, 1 to 16) tokens after the first `length` positions: (tokens, vocab_size), until the next pass.

        The prompt was evaluated before, which made the cache's arrays.
        """
        count = tokens.shape[1]
        width = next(each for each in WIDTHS if each >= count)
        self._length.fill_(length)
        if (level, width) not in self._replays:
            self._replays[level, width] = self._captured(width)
        replay, ids, logits = self._replays[level, width]
        ids[:, :count] = tokens
        replay()
        return logits[0, :count]

    def _captured(self, width: int) -> tuple[Callable[[], object], torch.Tensor, torch.Tensor]:
        """A graph of a pass: what replays it, its tokens and its logits."""
        ids = torch.zeros((1, width), dtype=torch.long, device=self.model.device)
        self._kept += self.model.modules()
        if ids.device.type != "cuda":
            logits = self._pass(ids)
            return lambda: logits.copy_(self._pass(ids)), ids, logits
        with torch.cuda.device(ids.device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(NUM_WARMUPS):
                    self._pass(ids)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self._pass(ids)
        return graph.replay, ids, logits

    def _pass(self, ids: torch.Tensor) -> torch.Tensor:
        torch._foreach_copy_(self._lengths(), [self._length] * len(self.cache.layers))
        positions = self._length + torch.arange(ids.shape[1], device=ids.device)
        hidden = torch.arange(self.cache.layers[0].max_cache_len, device=ids.device) > positions[:, None]
        # transformers would ask the device for the length, to choose a mask
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=ids.device)
        mask = mask.masked_fill_(hidden, torch.finfo(mask.dtype).min)[None, None]
        own = {"position_ids": positions[None], "attention_mask": mask, cache_name(): self.cache}
        logits: torch.Tensor = self.model(input_ids=ids, use_cache=True, return_dict=True, **own).logits
        return logits

    def _lengths(self) -> list[torch.Tensor]:
        return [layer.cumulative_length for layer in self.cache.layers]


class GraphedTarget(TorchTarget):
    """As `TorchTarget`, whose passes over few tokens are graphs.

    Args:
        model: as there.
        input_ids: as there.
        model_kwargs: as there.
        graphs: of the model.

    Raises:
        ModelError: as there, or padding, or tokens in the KV cache already.
    """

    def __init__(
        self, model: "PreTrainedModel", input_ids: torch.Tensor, model_kwargs: dict[str, Any], graphs: PassGraphs
    ) -> None:
        super().__init__(model, input_ids, model_kwargs)
        if self.cache.get_seq_length() or len(self.visible()) < input_ids.shape[1]:
            raise ModelError(
                "generate: padding, or a KV cache with tokens; one whole text is required for CUDA graphs. Leave "
                "graphs=True out."
            )
        self.graphs, self._length = graphs, 0
        self.cache, self._mask, self._positions = graphs.cache, None, None
        graphs.set_length(0)

    @property
    def length(self) -> int:
        return self._length

    def extend(self, tokens: torch.Tensor, num_logits: int) -> torch.Tensor:
        count = tokens.shape[1]
        if self._length and count <= WIDTHS[-1]:
            logits = self.graphs.logits(tokens, self._length, self._level())[-num_logits:]
            logits = logits.to(copy=True, dtype=torch.float32, device=tokens.device)
        else:
            self.graphs.set_length(self._length)
            logits = super().extend(tokens, num_logits)
        self._length += count
        return logits

    def rewind(self, length: int) -> None:
        self._length = length

    def _level(self) -> str:
        """The level of the model's layers: all have the same."""
        return next((each.level for each in self.model.modules() if isinstance(each, LeveledModule)), "target")
