"""MTP modules of tiny random models, made by transformers, and what they compute: the whole text every time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from mxconv.codecs.float16 import BF16

# of a checkpoint's names: those of the module's own parts, and where its layer lies
NEXTN = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm", "mtp_block": ""}
BESIDE = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc",
    "post_norm": "norm",
    "mtp_block": "layers.0",
}
MTP_LAYERS = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "post_norm": "final_layernorm",
    "mtp_block": "",
}


class MtpOracle:
    """transformers' MtpModel of one module beside a model, every parameter random and exact in BF16.

    Args:
        model: of transformers.
        state_first: what the projection takes in first.
    """

    def __init__(self, model: Any, state_first: bool = False) -> None:
        text = model.config.get_text_config()
        text.num_mtp_layers = 1
        text.mtp_layer_types = ["full_attention"]
        text.mtp_mlp_layer_types = ["sparse"]
        text.mtp_hidden_states_first = state_first
        self.model = model
        self.mtp = MtpModel(model, 1).eval()
        norm = type(model.get_decoder().norm)  # the layers' first may be of another kind: that of a mixer with a state
        for part in ("enorm", "hnorm", "post_norm"):
            setattr(self.mtp.layers[0], part, norm(text.hidden_size, eps=text.rms_norm_eps))
        generator = torch.Generator().manual_seed(11)
        for name, tensor in [*self.mtp.layers.named_parameters(), *self.mtp.layers.named_buffers()]:
            if name.endswith("inv_freq"):
                continue
            values = torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.ndim >= 2 else 0.3)
            if tensor.ndim == 1 and float(tensor.detach().mean()) > 0.9:
                values += 1.0
            tensor.data.copy_(torch.from_numpy(BF16.decode(BF16.encode(values.numpy()))))

    def tensors(self, prefix: str, names: dict[str, str]) -> dict[str, Any]:
        """Its parameters by the names of a checkpoint, those of its layer as transformers has them."""
        found = {}
        for name, tensor in self.mtp.layers[0].state_dict().items():
            part, _, rest = name.partition(".")
            found[prefix + ".".join(word for word in (names[part], rest) if word)] = tensor
        return dict(entry for item in found.items() for entry in _apart(*item))

    @torch.no_grad()
    def states(self, tokens: Sequence[int]) -> np.ndarray:
        """(n, hidden_size): the model's last hidden states, as generation hands them to the module."""
        made: Any = self.model(torch.tensor([tokens]), output_hidden_states=True)
        return np.asarray(made.hidden_states[-1][0].numpy())

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """(len(drafted) + 1, vocab_size): after the text, and after each further token."""
        features, text, found = torch.from_numpy(self.states(tokens[:-1]))[None], list(tokens[1:]), []
        for token in (*drafted, None):
            places = torch.arange(1, len(text) + 1)[None]
            cache = MtpCache(config=self.mtp.config)
            made = self.mtp.forward_layer(0, features, places, cache, input_ids=torch.tensor([text]))[:, -1:]
            found.append(self.mtp.shared_head(made)[0, 0].numpy())
            features = torch.cat([features, made], dim=1)
            text.append(token)
        return np.stack(found)


def _apart(name: str, tensor: Any) -> list[tuple[str, Any]]:
    """Stacked experts one by one, as checkpoints of this layout have them."""
    prefix, is_stack, part = name.rpartition(".experts.")
    if not is_stack or tensor.ndim != 3:
        return [(name, tensor)]
    parts = {"gate_proj": 0, "up_proj": 1} if part == "gate_up_proj" else {"down_proj": 0}
    return [
        (f"{prefix}.experts.{expert}.{own}.weight", matrix.chunk(len(parts))[half])
        for expert, matrix in enumerate(tensor)
        for own, half in parts.items()
    ]
