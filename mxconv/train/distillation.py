"""Training a small Llama to predict what its target predicts: distillation on texts and on the target's own text.

Source:
    FastDraft (arXiv 2411.11055): pre-training, then the target's own text.
"""

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mxconv.checkpoint.folder import companions
from mxconv.train.training_task import (
    FrozenTarget,
    TrainingTask,
    hard_target_loss,
    kl_divergence,
    num_parameters,
    tvd_plus_plus,
)
from mxconv.train.windows import Windows

Loss = Literal["kl", "tvd++", "text"]


class DistillationTask(TrainingTask):
    """A Llama with the target's vocabulary.

    Args:
        config: of the draft, a Hugging Face Llama's.
        target: what it copies.
        folder: of the target, whose tokenizer goes along.
        loss: kl, tvd++, or text: plain cross-entropy.
        dtype: to which the weights are rounded when they are written.
        start: a folder with weights to begin with; None begins at random.
    """

    def __init__(
        self, config: Any, target: FrozenTarget, folder: Path, loss: Loss, dtype: torch.dtype, start: Path | None = None
    ) -> None:
        super().__init__(config.to_dict() | {"architectures": ["LlamaForCausalLM"]}, target, dtype, [loss])
        self.config = config
        self.folder = folder
        self.loss = loss
        self.start = start

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
            return hard_target_loss(logits, token_ids[:, first + 1 :])[None]
        theirs = self.target.logits(token_ids)[:, first:-1]
        compare = kl_divergence if self.loss == "kl" else tvd_plus_plus
        return compare(logits, theirs)[None]

    def flops_per_token(self, model: nn.Module) -> float:
        return 6.0 * num_parameters(model) if self.loss == "text" else super().flops_per_token(model)

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        if self.config.tie_word_embeddings:
            tensors = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
        super().write(tensors, folder)
        for name in companions(path.name for path in self.folder.iterdir() if path.is_file()):
            if name != "config.json" and not name.startswith("LICENSE"):
                shutil.copyfile(self.folder / name, folder / name)
