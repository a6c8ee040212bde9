"""The 4-bit weights as a draft on the GPU: the user's own model, its linear layers one level down, on its own KV cache.

A round of drafting evaluates one token after the other at the draft's level, behind what the cache holds, and takes
them back. Everything that is no linear layer (embeddings, norms, attention) is the target's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from mxconv.drafts.statistics import LevelStatistics
from mxconv.errors import ModelError
from mxconv.gpu.package import GpuPackage
from mxconv.interop.transformers.gpu.expert_modules import matrices_of_experts
from mxconv.interop.transformers.gpu.experts import GpuExperts
from mxconv.interop.transformers.gpu.layer_weights import put_module, weights_of_layers
from mxconv.interop.transformers.gpu.linear import GpuLinear
from mxconv.interop.transformers.target import TorchTarget
from mxconv.kernels.triton.weight import Weight
from mxconv.package.manifest import LevelRecord


class SelfDraft:
    """A draft that waits for a text.

    Args:
        package: what the draft's weights are read from, where the model has none of its own.
        record: of the draft.
        device: where they go to.
        num_draft_tokens: asked for in a round.
        confidence: a token below it ends a proposal, itself included.
    """

    def __init__(
        self, package: Path, record: LevelRecord, device: torch.device, num_draft_tokens: int, confidence: float
    ) -> None:
        self.package, self.record, self.device = package, record, device
        self.num_draft_tokens, self.confidence = num_draft_tokens, confidence
        self._weights: GpuPackage | None = None  # read when a model first needs them

    @contextlib.contextmanager
    def begin(self, target: TorchTarget) -> Iterator["SelfDraftChain"]:
        """For one text: a model without BSFP layers gets the package's 4-bit weights beside its own meanwhile."""
        kinds = GpuLinear, GpuExperts
        own = [module for module in target.model.modules() if isinstance(module, kinds) and module.has_target]
        statistics = [LevelStatistics(self.record.name)]
        if own:
            yield SelfDraftChain(self, target, own, statistics)
            return
        drafted = self._install(target.model)
        try:
            yield SelfDraftChain(self, target, list(drafted.values()), statistics)
        finally:
            for name, module in drafted.items():
                put_module(target.model, name, module.original)

    def close(self) -> None:
        """Let go of weights that were read for models without BSFP layers."""
        self._weights = None

    def _install(self, model: nn.Module) -> "dict[str, DraftedLinear | GpuExperts]":
        where = next(model.parameters()).device
        if where.type != self.device.type:
            raise ModelError(f"drafts: device {self.device}, and the model is on {where}; one place is required.")
        if self._weights is None:
            self._weights = GpuPackage(self.package, self.device, level="draft")
        layers = weights_of_layers(model, self._weights.weights, str(self.package))
        experts = matrices_of_experts(model, self._weights.stacks, str(self.package))
        drafted: dict[str, DraftedLinear | GpuExperts] = {
            name: DraftedLinear(linear, weight) for name, (linear, weight) in layers.items()
        }
        drafted |= {name: GpuExperts(module, matrices, is_target=True) for name, (module, matrices) in experts.items()}
        for name, module in drafted.items():
            put_module(model, name, module)
        return drafted


class DraftedLinear(nn.Module):
    """A torch layer with the same weights in 4 bits beside it."""

    def __init__(self, linear: nn.Linear, draft: Weight) -> None:
        super().__init__()
        self.original, self.draft, self.level = linear, draft, "target"

    @property
    def weight(self) -> torch.Tensor:
        """The torch layer's."""
        return self.original.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the layer, or with 4-bit weights."""
        if self.level == "target":
            return self.original(x)  # type: ignore[no-any-return]
        result = self.draft.product(x.reshape(-1, x.shape[-1]))
        if self.original.bias is not None:
            result = result + self.original.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.draft.rows)


class SelfDraftChain:
    """A draft at work on one text that grows. `statistics` is what it did."""

    def __init__(
        self,
        draft: SelfDraft,
        target: TorchTarget,
        layers: Sequence[GpuLinear | DraftedLinear | GpuExperts],
        statistics: list[LevelStatistics],
    ) -> None:
        self.statistics = statistics
        self._draft, self._target, self._layers = draft, target, layers
        self._num_asked = 0

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens that may follow; fewer where one is not likely enough."""
        self._num_asked = max(min(self._draft.num_draft_tokens, max_tokens), 0)
        target, length, tokens = self._target, self._target.length, []
        last = torch.tensor([context[-1:]], device=target.model.device)
        try:
            self._set_level("draft")
            for _ in range(self._num_asked):
                with self.statistics[0].forward():
                    probability, token = target.extend(last, 1)[0].softmax(dim=-1).max(dim=-1)
                    is_likely = float(probability) >= self._draft.confidence
                if not is_likely:
                    break
                last = token.view(1, 1)  # stays on the device
                tokens.append(int(token))
        finally:
            self._set_level("target")
            target.rewind(length)
        return tokens

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """What became of the last proposal; its length does not change by that."""
        if self._num_asked:
            self.statistics[0].count(self._num_asked, len(proposed), num_accepted)
        self._num_asked = 0

    def _set_level(self, level: Literal["target", "draft"]) -> None:
        self._target.level = level
        for layer in self._layers:
            layer.level = level
