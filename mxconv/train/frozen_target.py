"""The target of a training, read in place and left as it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mxconv.errors import ModelError


class FrozenTarget:
    """A Hugging Face model that hands out its hidden states and logits.

    Args:
        folder: with config.json and the weights in safetensors.
        device: where it computes.
        dtype: of its arithmetic.

    Raises:
        ModelError: there are no weights, or transformers cannot load them.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        if not list(folder.glob("*.safetensors")):
            raise ModelError(
                f"{folder}: no .safetensors file; a target with its weights is required, since a draft learns from "
                "what it computes. Give the folder of the 16-bit model."
            )
        disable_progress_bar()
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"{folder}: transformers cannot load it ({reason}); a 16-bit causal language model is required. "
                "Check the folder with mxconv inspect."
            ) from error
        self.model = model.to(device).eval().requires_grad_(False)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def states(self, token_ids: Tensor) -> Tensor:
        """(batch, length, hidden_size): the states behind the final norm."""
        found: Tensor = self.model.model(input_ids=token_ids, use_cache=False).last_hidden_state
        return found

    @torch.no_grad()
    def logits(self, token_ids: Tensor) -> Tensor:
        """(batch, length, vocab_size)."""
        found: Tensor = self.model(input_ids=token_ids, use_cache=False).logits
        return found

    @torch.no_grad()
    def layers(self, token_ids: Tensor, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What feeds some layers, (len(layers), batch, length, hidden_size), and the logits, of one pass."""
        made = self.model(input_ids=token_ids, use_cache=False, output_hidden_states=True)
        return torch.stack([made.hidden_states[layer] for layer in layers]), made.logits
