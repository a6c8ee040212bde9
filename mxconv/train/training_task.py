"""The frozen target of a training, and the task of each kind of draft: its model, losses and files.

Source:
    Losses: Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419),
    section 3.4; expected acceptance: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding"
    (arXiv 2211.17192), section 3; TVD++: arXiv 2403.00858, section 3.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from mxconv.errors import ModelError
from mxconv.train.windows import Windows


class FrozenTarget:
    """A Hugging Face model whose hidden states and logits a draft learns from; it is read in place and not changed.

    Args:
        folder: with config.json and the weights in safetensors.
        device: where it computes.

    Raises:
        ModelError: there are no weights, or transformers cannot load them.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        if not list(folder.glob("*.safetensors")):
            raise ModelError(
                f"{folder}: no .safetensors file; a target with its weights is required, since a draft learns from "
                "what it computes. Give the folder of the 16-bit model."
            )
        disable_progress_bar()
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"{folder}: transformers cannot load it ({reason}); a 16-bit causal language model is required. "
                "Check the folder with mxconv inspect."
            ) from error
        self.model = model.to(device).eval().requires_grad_(False)
        self._known: Tensor | None = None  # the tokens whose logits are computed in a pass; None: all
        self._change_head()

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.model)

    def _change_head(self) -> None:
        """Multiply in float32 under autocast too, since logits in BF16 are steps of an eighth apart; by known rows."""
        head = self.model.get_output_embeddings()
        multiply = head.forward

        def forward(x: Tensor) -> Tensor:
            with torch.autocast(x.device.type, enabled=False):
                if self._known is None:
                    made: Tensor = multiply(x.float())
                    return made
                bias = None if getattr(head, "bias", None) is None else head.bias[self._known]
                return functional.linear(x.float(), head.weight[self._known], bias)

        head.forward = forward

    @torch.no_grad()
    def states(self, token_ids: Tensor) -> Tensor:
        """(batch, length, hidden_size): the states after the final norm."""
        found: Tensor = self.model.model(input_ids=token_ids, use_cache=False).last_hidden_state
        return found

    @torch.no_grad()
    def logits(self, token_ids: Tensor) -> Tensor:
        """(batch, length, vocab_size)."""
        found: Tensor = self.model(input_ids=token_ids, use_cache=False).logits
        return found

    @torch.no_grad()
    def layers(self, token_ids: Tensor, layers: Sequence[int], known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The inputs of some layers, (len(layers), batch, length, hidden_size), and the logits, of one pass.

        Logits are (batch, length, vocab_size), or of `known` tokens alone, (batch, length, len(known)).
        """
        self._known = known
        try:
            made = self.model(input_ids=token_ids, use_cache=False, output_hidden_states=True)
        finally:
            self._known = None
        return torch.stack([made.hidden_states[layer] for layer in layers]), made.logits


class TrainingTask(ABC):
    """One kind of draft: its config.json, what it learns from, the dtype of its file, and the names of its losses."""

    weight_decay = 0.1  # of matrices

    def __init__(
        self, values: Mapping[str, Any], target: FrozenTarget, dtype: torch.dtype, parts: Sequence[str]
    ) -> None:
        self.values = dict(values)
        self.target = target
        self.dtype = dtype
        self.parts = parts

    @abstractmethod
    def model(self) -> nn.Module:
        """A freshly initialized model; the random numbers are torch's."""

    @abstractmethod
    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """The losses of one batch, (len(parts),), in nats a token; their mean is minimized.

        Args:
            model: what `model` made, perhaps wrapped.
            token_ids: (batch, length) int64 on the device.
            windows: where they are from.
        """

    def flops_per_token(self, model: nn.Module) -> float:
        """FLOPs of a training step: six a weight of the draft, two a weight of the target."""
        return 6.0 * num_parameters(model) + 2.0 * self.target.num_parameters

    def num_bytes(self, model: nn.Module) -> int:
        """Memory of a training without activations: weights, gradients, two averages, and the target."""
        return 16 * num_parameters(model) + 4 * self.target.num_parameters

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Write the trained draft, rounded but for its constants, into an empty folder, as others load it."""
        rounded = {name: tensor.to(self.dtype).clone().contiguous() for name, tensor in tensors.items()}
        save_file({**rounded, **self.constants()}, folder / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps({**self.values, "torch_dtype": str(self.dtype).removeprefix("torch.")}, indent=1)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")

    def constants(self) -> dict[str, Tensor]:
        """Tensors of the file that are not trained."""
        return {}


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def mixed_loss(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Half the distillation loss, less half the expected acceptance, which is to grow; the mean over all tokens.

    Args:
        draft_logits: (..., vocab_size).
        target_logits: the same shape, of the same texts; no gradient is theirs.
    """
    return (distillation_loss(draft_logits, target_logits) - expected_acceptance(draft_logits, target_logits)) / 2


def distillation_loss(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross-entropy of the draft against the target's distribution, mean over all tokens."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return -(wanted * functional.log_softmax(draft_logits.float(), -1)).sum(-1).mean()


def expected_acceptance(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """The chance that rejection sampling accepts a token drawn from the draft: the mass that both share, mean."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return torch.minimum(wanted, torch.softmax(draft_logits.float(), -1)).sum(-1).mean()


def hard_target_loss(draft_logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy against the text itself, (...) int64: the loss without distillation (an ablation of Fig. 5)."""
    return functional.cross_entropy(draft_logits.float().flatten(0, -2), tokens.flatten())


def kl_divergence(draft: Tensor, target: Tensor) -> Tensor:
    """KL(target || draft) in nats a token, from logits (..., vocab_size)."""
    ours, theirs = draft.flatten(0, -2).float().log_softmax(-1), target.flatten(0, -2).float().log_softmax(-1)
    return functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def tvd_plus_plus(draft: Tensor, target: Tensor) -> Tensor:
    """Total variation distance as a policy gradient whose rewards are centred and scaled; logits (..., vocab_size).

    A token is worth 1 where the target gives it more than the draft does. The gradient is that of the distance with
    less variance; the value is no distance.

    Source:
        arXiv 2403.00858, section 3.3.
    """
    ours, theirs = draft.flatten(0, -2).float().softmax(-1), target.flatten(0, -2).float().softmax(-1)
    rewards = (theirs > ours).float().detach()
    weights = ours.detach() / len(ours)
    mean = (weights * rewards).sum()
    spread = (weights * (rewards - mean) ** 2).sum().sqrt().clamp_min(1e-6)
    return -(ours * (rewards - mean) / spread).sum(-1).mean()
