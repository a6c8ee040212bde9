"""Training a SPIRe draft: behind every k-th prefix of a text, against what its target says there.

Source:
    arXiv 2504.06419, sections 3.2 to 3.4, and the ablations of Fig. 5.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mxconv.drafts.readers.spire_layers import SpireConfig
from mxconv.train.frozen_target import FrozenTarget
from mxconv.train.mixed_loss import hard_target_loss, mixed_loss
from mxconv.train.spire_model import SpireModel
from mxconv.train.windows import Windows

Loss = Literal["mixed", "distillation", "text"]


@dataclass(frozen=True)
class SpireChoices:
    """What may be left out of a training, each an ablation of Fig. 5.

    Args:
        loss: mixed, half distillation and half expected acceptance; distillation alone; or the text itself.
        is_pruned: whether it begins as the target's own layers, and not at random.
        has_feedback: whether layers see a mixture of all layers' activations of what the draft proposed.
    """

    loss: Loss = "mixed"
    is_pruned: bool = True
    has_feedback: bool = True


class SpireTask:
    """Implements `Task`.

    Args:
        values: the draft's config.json.
        target: what it reads and copies.
        block: k, tokens of a proposal.
        dtype: that the weights are rounded to when they are written.
        choices: what is left out.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        target: FrozenTarget,
        block: int,
        dtype: torch.dtype,
        choices: SpireChoices = SpireChoices(),
    ) -> None:
        self.values = dict(values)
        self.config = SpireConfig.from_dict(self.values)
        self.target = target
        self.block = block
        self.dtype = dtype
        self.choices = choices

    @property
    def parts(self) -> list[str]:
        return [f"token {place}" for place in range(1, self.block + 1)]

    def model(self) -> SpireModel:
        made = SpireModel(self.config)
        if self.choices.is_pruned:
            made.load_target(self.target.model.state_dict())
        if not self.choices.has_feedback:
            made.remove_feedback()
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        states, theirs = self.target.layers(token_ids, self.config.target_layers)
        logits: Tensor = model(token_ids, states if self.config.past_memory == "target" else None, self.block)
        first = max(windows.num_prompt_tokens - 1, 0)
        made = []
        for place in range(self.block):
            begin = first + (place - first) % self.block
            ours, wanted = logits[:, begin : -1 : self.block], theirs[:, begin : -1 : self.block]
            if self.choices.loss == "text":
                made.append(hard_target_loss(ours, token_ids[:, begin + 1 :: self.block]))
            else:
                made.append(mixed_loss(ours, wanted, 0.5 if self.choices.loss == "mixed" else 1.0))
        return torch.stack(made)

    def flops_per_token(self, model: nn.Module) -> float:
        """Six a weight of the draft, two of the target."""
        own = sum(parameter.numel() for parameter in model.parameters())
        return 6.0 * own + 2.0 * self.target.num_parameters

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        rounded = {name: tensor.to(self.dtype).clone().contiguous() for name, tensor in tensors.items()}
        save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
        values = self.values | {"torch_dtype": str(self.dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
