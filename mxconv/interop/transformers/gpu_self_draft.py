"""The 4-bit weights as a draft on the GPU: the user's own model with its linear layers at the draft's level.

To draft, the model evaluates tokens one by one at the draft's level, on its own KV cache, and then forgets them.
Everything that is no linear layer (embeddings, norms, attention) is the target's.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from mxconv.errors import ModelError
from mxconv.gpu.gpu_experts import GpuExperts, matrices_of_experts
from mxconv.gpu.gpu_linear import DraftedLinear, GpuLinear, LeveledModule, weights_of_layers
from mxconv.gpu.gpu_package import GpuPackage
from mxconv.interop.transformers.torch_target import TorchTarget
from mxconv.package.level_record import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS
from mxconv.package.manifest import Manifest
from mxconv.speculation.statistics import LevelStatistics


class GpuSelfDraft:
    """The self-draft of a package on a GPU, for one text after another.

    Args:
        root: the package's folder; its weights are read where the model has none of its own.
        manifest: the package's.
        device: where the model is.
        levels: None, or the self-draft's name.
        num_draft_tokens: one number; None for the package's.
        confidence: likewise; a token below it ends a proposal, itself included.

    Raises:
        ModelError: the package has no self-draft, or arguments are for other drafts.
    """

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        device: torch.device,
        levels: Sequence[str] | None,
        num_draft_tokens: Sequence[int] | Literal["auto"] | None,
        confidence: Sequence[float] | None,
    ) -> None:
        record = next((level for level in manifest.levels if level.kind == "self-draft"), None)
        if record is None or (levels is not None and list(levels) != [record.name]):
            named = "none" if record is None else record.name
            raise ModelError(
                f"{root}: drafts {', '.join(levels or ['all'])} on {device}; the 4-bit self-draft ({named}) is the one "
                "that runs there. Name it alone, or leave device out."
            )
        numbers = (num_draft_tokens, confidence)
        if num_draft_tokens == "auto" or any(len(each) != 1 for each in numbers if each is not None):
            raise ModelError(
                f"drafts: num_draft_tokens={num_draft_tokens!r}, confidence={confidence!r} on {device}; one number of "
                "each is required, for the one draft. Leave them out for the package's."
            )
        self.name, self.device = record.name, device
        self.num_draft_tokens = (
            num_draft_tokens[0] if num_draft_tokens else record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS
        )
        recorded = DEFAULT_CONFIDENCE if record.confidence is None else record.confidence
        self.confidence = confidence[0] if confidence else recorded
        self._root = root
        self._weights: GpuPackage | None = None  # read when a model first needs them

    @contextlib.contextmanager
    def begin(self, target: TorchTarget) -> Iterator["GpuSelfDraftChain"]:
        """Draft for one text; a model without BSFP layers has the package's 4-bit weights meanwhile."""
        own = [module for module in target.model.modules() if isinstance(module, GpuLinear | GpuExperts)]
        own = [module for module in own if module.has_target]
        if own:
            yield GpuSelfDraftChain(self, target, own)
            return
        drafted = self._install(target.model)
        try:
            yield GpuSelfDraftChain(self, target, list(drafted.values()))
        finally:
            for name, module in drafted.items():
                target.model.set_submodule(name, module.original)

    def close(self) -> None:
        """Free weights that were read for models without BSFP layers."""
        self._weights = None

    def _install(self, model: nn.Module) -> dict[str, DraftedLinear | GpuExperts]:
        where = next(model.parameters()).device
        if where.type != self.device.type:
            raise ModelError(f"drafts: device {self.device}, and the model is on {where}; one place is required.")
        if self._weights is None:
            self._weights = GpuPackage(self._root, self.device, level="draft")
        layers = weights_of_layers(model, self._weights.weights, str(self._root))
        experts = matrices_of_experts(model, self._weights.stacks, str(self._root))
        drafted: dict[str, DraftedLinear | GpuExperts] = {
            name: DraftedLinear(linear, weight) for name, (linear, weight) in layers.items()
        }
        drafted |= {name: GpuExperts(module, matrices, is_target=True) for name, (module, matrices) in experts.items()}
        for name, module in drafted.items():
            model.set_submodule(name, module)
        return drafted


class GpuSelfDraftChain:
    """A draft for one growing text; `statistics` has its counts."""

    def __init__(self, draft: GpuSelfDraft, target: TorchTarget, layers: Sequence[LeveledModule]) -> None:
        self.statistics = [LevelStatistics(draft.name)]
        self._draft, self._target, self._layers = draft, target, layers
        self._num_requested = 0

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """Propose at most `max_tokens` tokens; fewer where one is not likely enough."""
        self._num_requested = max(min(self._draft.num_draft_tokens, max_tokens), 0)
        target, length, tokens = self._target, self._target.length, []
        last = torch.tensor([context[-1:]], device=target.model.device)
        try:
            self._set_level("draft")
            for _ in range(self._num_requested):
                with self.statistics[0].timed_pass():
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
        """Count the accepted tokens of the last proposal; later proposals do not depend on them."""
        if self._num_requested:
            self.statistics[0].count(self._num_requested, len(proposed), num_accepted)
        self._num_requested = 0

    def _set_level(self, level: Literal["target", "draft"]) -> None:
        for layer in self._layers:
            layer.level = level
