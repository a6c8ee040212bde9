"""Parts of drafts' layers in torch, named as in a Llama's file."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.arch.config import ModelConfig
from mxconv.engine.rope import RotaryEmbedding


class Projections(nn.Module):
    """Projections of a layer's attention, whose input has the hidden size, or another one."""

    def __init__(self, config: ModelConfig, attended_size: int | None = None) -> None:
        super().__init__()
        hidden, head = config.hidden_size, config.head_dim
        attended = attended_size or hidden
        heads, kv_heads = config.num_attention_heads * head, config.num_key_value_heads * head
        self.q_proj = nn.Linear(attended, heads, config.qkv_bias)
        self.k_proj = nn.Linear(attended, kv_heads, config.qkv_bias)
        self.v_proj = nn.Linear(attended, kv_heads, config.qkv_bias)
        self.o_proj = nn.Linear(heads, hidden, config.output_bias)
        self.q_norm = nn.RMSNorm(head, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(head, config.rms_norm_eps) if config.qk_norm else None


class GatedMlp(nn.Module):
    """The MLP of a layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, config.mlp_bias)

    def forward(self, h: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))
        return result


def initialize(model: nn.Module) -> None:
    """Draw the matrices of a new draft, of std 0.02; biases are zeros."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)


def heads(x: Tensor, config: ModelConfig) -> Tensor:
    """(batch, n, num_heads * head_dim) to (batch, n, num_heads, head_dim)."""
    return x.reshape(*x.shape[:2], -1, config.head_dim)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (j, j + head_dim / 2) of heads (batch, n, heads, head_dim)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


@lru_cache(maxsize=4)
def rotations(rotary: RotaryEmbedding, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of all positions, (length, 1, head_dim / 2) each."""
    cosines, sines = rotary.rotations(range(length))
    return torch.from_numpy(cosines), torch.from_numpy(sines)
