"""Training an EAGLE-3 head: it drafts behind every prefix of a text, and learns what its target says there.

The first token is drafted from the target's states, each further one from what the head gave itself, as at run time:
the training-time test. A head that saw the target's states alone would never have met its own errors.

Source:
    arXiv 2503.01840, section 3.2.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mxconv.arrays import I64
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.train.eagle3_model import Eagle3Model
from mxconv.train.frozen_target import FrozenTarget
from mxconv.train.mixed_loss import distillation_loss
from mxconv.train.windows import Windows


class Eagle3Task:
    """Implements `Task`.

    The embedding is the target's, frozen and left out of the file, as the format allows: it is most of a head's bytes,
    and the target keeps it anyway. Output head and final norm begin as the target's, since it is the target's words
    that are wanted. The layer begins at random: its attention takes in an embedding beside the feature, which no layer
    of the target does.

    Args:
        values: the head's config.json, with the layers that it reads.
        target: what it reads and copies.
        tokens: (draft_vocab_size,) the target's ids that it knows, rising.
        block: tokens that it drafts behind every prefix.
        dtype: that the weights are rounded to when they are written.
    """

    def __init__(
        self, values: Mapping[str, object], target: FrozenTarget, tokens: I64, block: int, dtype: torch.dtype
    ) -> None:
        self.values = dict(values)
        self.config = Eagle3Config.from_dict(self.values)
        self.target = target
        self.tokens = tokens
        self.block = block
        self.dtype = dtype

    @property
    def parts(self) -> list[str]:
        return [f"token {place}" for place in range(1, self.block + 1)]

    def model(self) -> Eagle3Model:
        made = Eagle3Model(self.config)
        theirs = self.target.model
        head = theirs.get_output_embeddings().weight
        made.load_head(theirs.model.norm.weight.cpu(), head[self._known(head.device)].cpu())
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """Cross-entropy against the target's distribution over the tokens that the head knows, for each place.

        Of each text the same prefixes, whatever the place: those that end with the first token that the target wrote,
        and longer ones.
        """
        assert self.config.layer_ids is not None
        states, theirs = self.target.layers(token_ids, (0, *self.config.layer_ids))  # 0 is the embedding
        logits: list[Tensor] = model(states[1:], states[0], self.block)
        wanted = theirs[..., self._known(theirs.device)]
        first = max(windows.num_prompt_tokens - 2, 0)  # row i stands behind token i + 1
        return torch.stack(
            [distillation_loss(row[:, first:], wanted[:, 1 + step + first :]) for step, row in enumerate(logits)]
        )

    def flops_per_token(self, model: nn.Module) -> float:
        """Six a weight of the head and step, but for the fusion, which is done once; two of the target."""
        own = sum(parameter.numel() for parameter in model.parameters())
        fusion = sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("fc.weight"))
        return 6.0 * (self.block * own - (self.block - 1) * fusion) + 2.0 * self.target.num_parameters

    def write(self, tensors: dict[str, Tensor], folder: Path) -> None:
        rounded = {name: tensor.to(self.dtype).clone().contiguous() for name, tensor in tensors.items()}
        known = np.zeros(self.config.vocab_size, np.bool_)
        known[self.tokens] = True
        distances = self.tokens - np.arange(len(self.tokens))
        vocabulary = {"d2t": torch.from_numpy(distances), "t2d": torch.from_numpy(known)}
        save_file(rounded | vocabulary, folder / "model.safetensors", metadata={"format": "pt"})
        values = self.values | {"torch_dtype": str(self.dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    def _known(self, device: torch.device) -> Tensor:
        return torch.from_numpy(self.tokens).to(device)
