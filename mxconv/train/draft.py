"""Training a small Llama to say what its target would say: distillation on texts and on the target's own text.

Source:
    FastDraft (arXiv 2411.11055): pre-training, then the target's own text. TVD++: arXiv 2403.00858, section 3.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mxconv.train.frozen_target import FrozenTarget
from mxconv.train.windows import Windows

Loss = Literal["kl", "tvd++", "text"]
COMPANIONS = (
    "tokenizer.json",
    "tokenizer.model",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


def kl_divergence(draft: Tensor, target: Tensor) -> Tensor:
    """KL(target || draft) in nats a token, of logits (..., vocab_size)."""
    ours, theirs = draft.flatten(0, -2).float().log_softmax(-1), target.flatten(0, -2).float().log_softmax(-1)
    return nn.functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


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


class DraftTask:
    """Implements `Task`.

    Args:
        config: of the draft, a Hugging Face Llama with the target's vocabulary.
        target: what it copies.
        folder: of the target, whose tokenizer goes along.
        loss: kl, tvd++, or text: plain cross-entropy.
        dtype: that the weights are rounded to when they are written.
        start: a folder with weights to begin with; None begins at random.
    """

    def __init__(
        self, config: Any, target: FrozenTarget, folder: Path, loss: Loss, dtype: torch.dtype, start: Path | None = None
    ) -> None:
        self.config = config
        self.target = target
        self.folder = folder
        self.loss = loss
        self.dtype = dtype
        self.start = start

    @property
    def parts(self) -> list[str]:
        return [self.loss]

    def model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM

        made: nn.Module = (
            AutoModelForCausalLM.from_config(self.config, dtype=torch.float32)
            if self.start is None
            else AutoModelForCausalLM.from_pretrained(self.start, dtype=torch.float32)
        )
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        first = max(windows.num_prompt_tokens - 1, 0)
        logits = model(input_ids=token_ids, use_cache=False).logits[:, first:-1]
        if self.loss == "text":
            following = token_ids[:, first + 1 :].flatten()
            return nn.functional.cross_entropy(logits.flatten(0, 1).float(), following)[None]
        theirs = self.target.logits(token_ids)[:, first:-1]
        compare = kl_divergence if self.loss == "kl" else tvd_plus_plus
        return compare(logits, theirs)[None]

    def flops_per_token(self, model: nn.Module) -> float:
        """Six a weight of the draft, two of the target."""
        own = sum(parameter.numel() for parameter in model.parameters())
        return 6.0 * own + (0.0 if self.loss == "text" else 2.0 * self.target.num_parameters)

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        kept = {name: tensor for name, tensor in tensors.items() if not self._is_tied(name)}
        rounded = {name: tensor.to(self.dtype).clone().contiguous() for name, tensor in kept.items()}
        save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
        config = self.config.to_dict() | {"torch_dtype": str(self.dtype).removeprefix("torch.")}
        config["architectures"] = ["LlamaForCausalLM"]
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        for name in COMPANIONS:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)

    def _is_tied(self, name: str) -> bool:
        return name == "lm_head.weight" and bool(self.config.tie_word_embeddings)
