"""The EAGLE-3 head in torch, for training: what it drafts behind every prefix of a text, a pass a token.

Source:
    Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
    (arXiv 2503.01840), section 3; what a token computes: formats/eagle3.md.
"""

import torch
from torch import Tensor, nn

from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.engine.rope import RotaryEmbedding
from mxconv.errors import ModelError
from mxconv.train.eagle3_layer import Eagle3Layer, Seen
from mxconv.train.layer_parts import rotations


class Eagle3Model(nn.Module):
    """Random weights of std 0.02; `load_head` takes the output head of a target.

    The names of its state are those of the file, without the embedding: a head may leave that to its target, and this
    one does, so that it is neither held nor trained nor written twice.

    Args:
        config: sizes, with the layers that it reads named.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        assert config.layer_ids is not None
        self.config = config
        layer, read = config.layer, config.target_hidden_size
        size, eps, self.num_states = layer.hidden_size, layer.rms_norm_eps, len(config.layer_ids)
        self.input_norm = nn.RMSNorm(self.num_states * read, eps) if config.norm_before_fc else None
        self.fc_norm = nn.ModuleList(nn.RMSNorm(read, eps) for _ in range(self.num_states if config.fc_norm else 0))
        self.fc = nn.Linear(self.num_states * read, size, bias=False)
        self.layers = nn.ModuleList(
            Eagle3Layer(layer, index == 0, config.norm_before_residual) for index in range(layer.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(size, eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self._rotary = RotaryEmbedding(layer.rope, layer.head_dim)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def load_head(self, norm: Tensor, head: Tensor) -> None:
        """Copy the target's final norm (hidden_size,) and, of its output head, the rows of the tokens known here."""
        self.norm.weight.copy_(norm)
        self.lm_head.weight.copy_(head)

    def forward(self, states: Tensor, embedded: Tensor, block: int) -> list[Tensor]:
        """Logits of each token that it drafts, (batch, length - 1 - step, draft_vocab_size); see `features`."""
        made = self.features(states, embedded, block)
        return [self.lm_head(x if self.config.norm_output else self.norm(x)) for x in made]

    def features(self, states: Tensor, embedded: Tensor, block: int) -> list[Tensor]:
        """What it gives, step by step, where each step goes on from its own outputs of the one before.

        Args:
            states: (num_states, batch, length, target_hidden_size) in the order of the fusion; given, no gradient is
                theirs.
            embedded: (batch, length, hidden_size), the target's embeddings of the text's tokens.
            block: how many tokens are drafted behind each prefix, those of the text.

        Returns:
            `block` tensors (batch, length - 1 - step, hidden_size): row i of step s has read the states of tokens 0 to
            i, follows token i + 1 + s, and its logits are of the token behind.

        Raises:
            ModelError: states of another number or length, or a text too short for the block.
        """
        length = embedded.shape[1]
        required = (self.num_states, *embedded.shape[:2], self.config.target_hidden_size)
        if states.shape != required:
            raise ModelError(
                f"target states: {tuple(states.shape)}; {required} is required, a state of each token for each layer "
                "that is read. Take those of the configuration."
            )
        if length <= block:
            raise ModelError(f"text of {length} tokens: a block of {block} requires one more at least. Give more text.")
        cosines, sines = (part.to(embedded) for part in rotations(self._rotary, length))
        seen: list[list[Seen]] = [[] for _ in self.layers]
        x, made = self._fused(states.detach().to(embedded.dtype))[:, :-1], []
        for step in range(block):
            at = slice(1 + step, None)
            x = x[:, : length - 1 - step]
            for layer, of_layer in zip(self.layers, seen, strict=True):
                x = layer(x, embedded[:, at], of_layer, (cosines[at], sines[at]))
            if self.config.norm_output:
                x = self.norm(x)
            made.append(x)
        return made

    def _fused(self, states: Tensor) -> Tensor:
        parts = list(states)
        if self.config.fc_norm:
            parts = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        joined = torch.cat(parts, -1)
        fused: Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return fused
