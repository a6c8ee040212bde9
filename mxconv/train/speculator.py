"""Training an MLP speculator on what its target computes.

Source:
    arXiv 2404.19124, section 3.2: the target's states with the text as it stands, then with text of its own.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
from mxconv.train.frozen_target import FrozenTarget
from mxconv.train.speculator_model import SpeculatorModel
from mxconv.train.windows import Windows


class SpeculatorTask:
    """Implements `Task`.

    Args:
        config: sizes.
        target: what it reads.
        dtype: that the weights are rounded to when they are written.
        hears_tokens: as `SpeculatorModel` has it.
    """

    def __init__(
        self, config: SpeculatorConfig, target: FrozenTarget, dtype: torch.dtype, hears_tokens: bool = True
    ) -> None:
        self.config = config
        self.target = target
        self.dtype = dtype
        self.hears_tokens = hears_tokens

    @property
    def parts(self) -> list[str]:
        return [f"head {stage}" for stage in range(1, self.config.n_predict + 1)]

    def model(self) -> SpeculatorModel:
        return SpeculatorModel(self.config, self.hears_tokens)

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        logits: list[Tensor] = model(self.target.states(token_ids), token_ids)
        first = max(windows.num_prompt_tokens - 2, 0)  # the first stage chooses the token two places on
        num_positions = logits[0].shape[1]
        return torch.stack(
            [
                nn.functional.cross_entropy(
                    row[:, first:].flatten(0, 1).float(),
                    token_ids[:, 2 + stage + first : 2 + stage + num_positions].flatten(),
                )
                for stage, row in enumerate(logits)
            ]
        )

    def flops_per_token(self, model: nn.Module) -> float:
        """Two a weight forward, four backward; the target's forward alone."""
        inner, own = self.config.inner_dim, self.config
        projections = inner * own.emb_dim + (own.n_predict - 1) * inner * inner
        return 6.0 * (projections + own.n_predict * inner * own.vocab_size) + 2.0 * self.target.num_parameters

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        rounded = {name: tensor.to(self.dtype).contiguous() for name, tensor in tensors.items()}
        save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
        config = self.config.to_dict() | {"torch_dtype": str(self.dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
