"""The layers of an EAGLE-3 head in torch, step by step of what it drafts behind every prefix of a text at once.

Row i of any step belongs to the same prefix. Of the first step's rows it sees those up to its own, of each later step
its own alone: the past of a chain that was drafted behind that prefix (arXiv 2503.01840, section 3.2 and Fig. 6).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mxconv.arch.config import ModelConfig
from mxconv.train.layer_parts import GatedMlp, Projections, heads, rotate

MOST_ROWS = 512  # that attend at once: shares of every row to every other are not kept for the way back

Seen = tuple[Tensor, Tensor]


class Eagle3Layer(nn.Module):
    """A layer, named as in the head's file.

    Args:
        config: sizes.
        is_first: whether attention takes in an embedding and a feature, each normed.
        adds_to_normed: whether the first layer adds to its normed feature.
    """

    def __init__(self, config: ModelConfig, is_first: bool, adds_to_normed: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.adds_to_normed = adds_to_normed
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps) if is_first else None
        self.self_attn = Projections(config, 2 * size if is_first else size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, embedded: Tensor, seen: list[Seen], rotations: tuple[Tensor, Tensor]) -> Tensor:
        """A step of all prefixes.

        Args:
            x: (batch, n, hidden_size), features or what the layer before gave.
            embedded: the same shape, of the tokens that the features go with.
            seen: keys and values (batch, at least n, num_key_value_heads, head_dim) of the steps before; this step's
                are added.
            rotations: of the rows, (n, 1, head_dim / 2) each.
        """
        own = self.self_attn
        if self.hidden_norm is None:
            taken = self.input_layernorm(x)
        else:
            normed = self.hidden_norm(x)
            taken = torch.cat([self.input_layernorm(embedded), normed], -1)
            x = normed if self.adds_to_normed else x
        queries, keys, values = (heads(made(taken), self.config) for made in (own.q_proj, own.k_proj, own.v_proj))
        if own.q_norm is not None and own.k_norm is not None:
            queries, keys = own.q_norm(queries), own.k_norm(keys)
        seen.append((rotate(keys, *rotations), values))
        x = x + own.o_proj(attend(rotate(queries, *rotations), seen))
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


def attend(queries: Tensor, seen: Sequence[Seen], most_rows: int = MOST_ROWS) -> Tensor:
    """What every row sees of the first step up to itself, and of each later step at its own place.

    Args:
        queries: (batch, n, num_heads, head_dim).
        seen: of each step, this one the last: keys and values (batch, at least n, num_key_value_heads, head_dim).
        most_rows: at once; of more the shares are computed again on the way back.

    Returns:
        (batch, n, num_heads * head_dim).
    """
    tensors = [part for step in seen for part in step]
    if queries.shape[1] <= most_rows:
        return _mixed(0, queries, *tensors)
    parts = [
        checkpoint(_mixed, start, queries[:, start : start + most_rows], *tensors, use_reentrant=False)
        for start in range(0, queries.shape[1], most_rows)
    ]
    return torch.cat(parts, 1)


def _mixed(start: int, queries: Tensor, keys: Tensor, values: Tensor, *later: Tensor) -> Tensor:
    """Of the rows from `start` on; `later` are keys and values of one step after the other."""
    stop, kv_heads = start + queries.shape[1], keys.shape[2]
    queries = queries.reshape(*queries.shape[:2], kv_heads, -1, queries.shape[-1]) * queries.shape[-1] ** -0.5
    scores = torch.einsum("brkgd,bckd->bkgrc", queries, keys[:, :stop])
    rows = torch.arange(start, stop, device=queries.device)
    scores = scores.masked_fill(torch.arange(stop, device=queries.device) > rows[:, None], -torch.inf)
    own = [torch.einsum("brkgd,brkd->bkgr", queries, made[:, start:stop]) for made in later[::2]]
    shares = torch.softmax(torch.cat([scores, *(row[..., None] for row in own)], -1), -1)
    mixed = torch.einsum("bkgrc,bckd->brkgd", shares[..., :stop], values[:, :stop])
    for place, made in enumerate(later[1::2]):
        mixed = mixed + torch.einsum("bkgr,brkd->brkgd", shares[..., stop + place], made[:, start:stop])
    return mixed.flatten(2)
