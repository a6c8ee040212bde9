"""Training an MLP speculator on what its target computes, with the parameters' names of the Hub's accelerators.

Source:
    arXiv 2404.19124, section 3.2: the target's states with texts as they are, then with text of its own.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.drafts.speculator import EPS, SpeculatorConfig
from mxconv.train.training_task import FrozenTarget, TrainingTask, hard_target_loss
from mxconv.train.windows import Windows


class SpeculatorTask(TrainingTask):
    """An MLP speculator.

    Args:
        config: sizes.
        target: what it reads.
        dtype: to which the weights are rounded when they are written.
    """

    def __init__(self, config: SpeculatorConfig, target: FrozenTarget, dtype: torch.dtype) -> None:
        super().__init__(config.to_dict(), target, dtype, [f"head {stage}" for stage in range(1, config.n_predict + 1)])
        self.config = config

    def model(self) -> "SpeculatorModel":
        """Embeddings and output heads begin as the target's where its states are as long as those of the stages."""
        made = SpeculatorModel(self.config)
        theirs = self.target.model
        embedding, head = (
            part.weight.cpu() for part in (theirs.get_input_embeddings(), theirs.get_output_embeddings())
        )
        if embedding.shape == head.shape == (self.config.vocab_size, self.config.inner_dim):
            made.load(embedding, head)
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        first = max(windows.num_prompt_tokens - 2, 0)  # the first stage chooses the token two places on
        return stage_losses(model(self.target.states(token_ids), token_ids), token_ids, first)

    def flops_per_token(self, model: nn.Module) -> float:
        """Two a weight forward, four backward; the target's forward alone."""
        inner, own = self.config.inner_dim, self.config
        projections = inner * own.emb_dim + (own.n_predict - 1) * inner * inner
        return 6.0 * (projections + own.n_predict * inner * own.vocab_size) + 2.0 * self.target.num_parameters


def stage_losses(logits: Sequence[Tensor], token_ids: Tensor, first: int = 0) -> Tensor:
    """The cross-entropy of each stage's logits against the text, (n_predict,), from position `first` on."""
    num_positions = logits[0].shape[1]
    return torch.stack(
        [
            hard_target_loss(row[:, first:], token_ids[:, 2 + stage + first : 2 + stage + num_positions])
            for stage, row in enumerate(logits)
        ]
    )


class ScaleAndShift(nn.Module):
    """RMS norm with a learned scale and shift."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(length))
        self.bias = nn.Parameter(torch.zeros(length))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight, EPS) + self.bias


class Stages(nn.Module):
    """The checkpoint's module `speculator`; tied parameters are there once."""

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

    Source:
        arXiv 2404.19124, section 3.1; initialization section 4: a standard deviation of inner_dim^-1/2.
    """

    def __init__(self, config: SpeculatorConfig) -> None:
        super().__init__()
        self.config = config
        self.speculator = Stages(config)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.inner_dim**-0.5)
        state_weight = 0.5 ** (0.5 / config.n_predict)
        self.token_weight = sqrt((1 - state_weight**2) * config.inner_dim / 2) / state_weight

    @torch.no_grad()
    def load(self, embedding: Tensor, head: Tensor) -> None:
        """Copy a target's embedding, scaled to the spread of what is random, and its head, (vocab_size, inner_dim)."""
        for own in self.speculator.emb.parameters():
            own.copy_(embedding * (self.config.inner_dim**-0.5 / embedding.std()))
        for own in self.speculator.head.parameters():
            own.copy_(head)

    def forward(self, states: Tensor, token_ids: Tensor) -> list[Tensor]:
        """Logits of each stage, (batch, num_positions, vocab_size), first of the token two places on.

        Args:
            states: (batch, length, emb_dim) of the target; the one at t chooses token t + 1.
            token_ids: (batch, length). num_positions is length - 1 - n_predict: all whose every stage has its token.
        """
        own, stages = self.config, self.speculator
        num_positions = token_ids.shape[1] - 1 - own.n_predict
        x = states[:, :num_positions]
        if own.scale_input:
            x = functional.rms_norm(x, x.shape[-1:], eps=EPS) / sqrt(2)
        made = []
        for stage in range(own.n_predict):
            place, projection = (0, min(stage, 1)) if own.tie_weights else (stage, stage)
            tokens = token_ids[:, 1 + stage : 1 + stage + num_positions]
            x = stages.proj[projection](x) + self.token_weight * stages.emb[place](tokens)
            x = functional.gelu(stages.ln[place](x))
            made.append(stages.head[place](x))
        return made
