"""A layer of the SPIRe draft in torch: one token of every block at a time, over keys and values made of memory."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.model.config import ModelConfig


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
        queries = _heads(self.self_attn.q_proj(self.input_layernorm(x)), self.config)
        if self.self_attn.q_norm is not None:
            queries = self.self_attn.q_norm(queries)
        queries = _rotate(queries, *rotations).unflatten(2, (self.config.num_key_value_heads, -1))  # type: ignore[no-untyped-call]
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
        keys = _heads(self.self_attn.k_proj(h), self.config)
        values = _heads(self.self_attn.v_proj(h), self.config)
        if self.self_attn.k_norm is not None:
            keys = self.self_attn.k_norm(keys)
        return _rotate(keys, *rotations), values


class Projections(nn.Module):
    """Of a layer's attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, head = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads * head, config.num_key_value_heads * head
        self.q_proj = nn.Linear(hidden, heads, config.qkv_bias)
        self.k_proj = nn.Linear(hidden, kv_heads, config.qkv_bias)
        self.v_proj = nn.Linear(hidden, kv_heads, config.qkv_bias)
        self.o_proj = nn.Linear(heads, hidden, config.output_bias)
        self.q_norm = nn.RMSNorm(head, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(head, config.rms_norm_eps) if config.qk_norm else None


class GatedMlp(nn.Module):
    """Of a layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, config.mlp_bias)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))
        return result


def _heads(x: Tensor, config: ModelConfig) -> Tensor:
    """(batch, n, num_heads * head_dim) to (batch, n, num_heads, head_dim)."""
    return x.reshape(*x.shape[:2], -1, config.head_dim)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (j, j + head_dim / 2) of heads (batch, n, heads, head_dim)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
