"""A layer of the SPIRe draft in torch: one token of every block at a time, over keys and values made of memory."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.arch.config import ModelConfig
from mxconv.train.layer_parts import GatedMlp, Projections, heads, rotate


class SpireLayer(nn.Module):
    """A layer, named as in a Llama's file."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Projections(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(
        self,
        x: Tensor,
        past: tuple[Tensor, ...],
        block: Sequence[tuple[Tensor, Tensor]],
        rotations: tuple[Tensor, Tensor],
        seen: Tensor,
    ) -> Tensor:
        """One token of every block.

        Args:
            x: (batch, num_blocks, hidden_size).
            past: keys and values (batch, at least num_blocks, num_key_value_heads, num_seen, head_dim) of what the
                target evaluated before each block.
            block: those of the tokens before, an entry a token: (batch, at least num_blocks, num_key_value_heads,
                head_dim).
            rotations: of the tokens, (num_blocks, 1, head_dim / 2) each.
            seen: (num_blocks, num_seen + len(block) + 1) bool, itself the last.
        """
        batch, num_blocks, _ = x.shape
        queries = heads(self.self_attn.q_proj(self.input_layernorm(x)), self.config)
        if self.self_attn.q_norm is not None:
            queries = self.self_attn.q_norm(queries)
        queries = rotate(queries, *rotations).unflatten(2, (self.config.num_key_value_heads, -1))  # type: ignore[no-untyped-call]
        rows = [*block, self.keys_and_values(x, rotations)]
        keys, values = (
            torch.cat([made[:, :num_blocks], torch.stack([row[part][:, :num_blocks] for row in rows], 3)], 3)
            for part, made in enumerate(past)
        )
        mask = seen.expand(batch, -1, -1).flatten(0, 1)[:, None, None]
        mixed = functional.scaled_dot_product_attention(
            queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), mask
        )
        x = x + self.self_attn.o_proj(mixed.reshape(batch, num_blocks, -1))
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added

    def keys_and_values(self, memory: Tensor, rotations: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Of memory (batch, n, hidden_size): two (batch, n, num_key_value_heads, head_dim)."""
        h = self.input_layernorm(memory)
        keys = heads(self.self_attn.k_proj(h), self.config)
        values = heads(self.self_attn.v_proj(h), self.config)
        if self.self_attn.k_norm is not None:
            keys = self.self_attn.k_norm(keys)
        return rotate(keys, *rotations), values
