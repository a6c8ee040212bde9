"""The MLP speculator in torch, with the parameters' names of the Hub's accelerators."""

from math import sqrt

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mxconv.drafts.readers.mlp_speculator import EPS, SpeculatorConfig


class ScaleAndShift(nn.Module):
    """RMS norm with a learned scale and shift."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(length))
        self.bias = nn.Parameter(torch.zeros(length))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, EPS) + self.bias


class Stages(nn.Module):
    """What the checkpoint calls `speculator`; tied parameters are there once."""

    def __init__(self, config: SpeculatorConfig) -> None:
        super().__init__()
        inner, own = config.inner_dim, 1 if config.tie_weights else config.n_predict
        read = [config.emb_dim] + [inner] * (min(config.n_predict, 2) - 1 if config.tie_weights else own - 1)
        self.emb = nn.ModuleList(nn.Embedding(config.vocab_size, inner) for _ in range(own))
        self.proj = nn.ModuleList(nn.Linear(length, inner, bias=False) for length in read)
        self.head = nn.ModuleList(nn.Linear(inner, config.vocab_size, bias=False) for _ in range(own))
        self.ln = nn.ModuleList(ScaleAndShift(inner) for _ in range(own))


class SpeculatorModel(nn.Module):
    """All stages on all positions of a text at once.

    Args:
        config: sizes.
        hears_tokens: False makes Medusa's heads of equal size: each reads the state alone, none the tokens chosen.

    Source:
        arXiv 2404.19124, section 3.1; initialization section 4: a standard deviation of inner_dim^-1/2.
    """

    def __init__(self, config: SpeculatorConfig, hears_tokens: bool = True) -> None:
        super().__init__()
        self.config = config
        self.hears_tokens = hears_tokens
        self.speculator = Stages(config)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.inner_dim**-0.5)
        state_weight = 0.5 ** (0.5 / config.n_predict)
        self.token_weight = sqrt((1 - state_weight**2) * config.inner_dim / 2) / state_weight

    def forward(self, states: Tensor, token_ids: Tensor) -> list[Tensor]:
        """Logits of each stage, (batch, num_positions, vocab_size), the token two places behind first.

        Args:
            states: (batch, length, emb_dim) of the target; the one at t chooses token t + 1.
            token_ids: (batch, length). num_positions is length - 1 - n_predict: all whose every stage has its token.
        """
        own, stages = self.config, self.speculator
        num_positions = token_ids.shape[1] - 1 - own.n_predict
        x = states[:, :num_positions]
        if own.scale_input:
            x = F.rms_norm(x, x.shape[-1:], eps=EPS) / sqrt(2)
        read, made = x, []
        for stage in range(own.n_predict):
            place, projection = (0, min(stage, 1)) if own.tie_weights else (stage, stage)
            if self.hears_tokens:
                tokens = token_ids[:, 1 + stage : 1 + stage + num_positions]
                x = stages.proj[projection](x) + self.token_weight * stages.emb[place](tokens)
            else:
                x = stages.proj[0](read) if own.tie_weights else self._medusa(stage, read)
            x = F.gelu(stages.ln[place](x))
            made.append(stages.head[place](x))
        return made

    def _medusa(self, stage: int, read: Tensor) -> Tensor:
        """Every head projects the target's state; where its own projection is of another length, through the first."""
        projection = self.speculator.proj[stage]
        out: Tensor = projection(read if projection.in_features == read.shape[-1] else self.speculator.proj[0](read))
        return out
