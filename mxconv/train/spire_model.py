"""The SPIRe draft in torch, for training: what it computes behind every k-th prefix of a text, k passes over all.

Source:
    Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419), section 3;
    what a token computes: formats/spire.md.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.arch.config import ModelConfig
from mxconv.drafts.readers.spire_layers import MEMORY_WEIGHTS, SpireConfig
from mxconv.engine.rope import RotaryEmbedding
from mxconv.errors import ModelError
from mxconv.train.layer_parts import rotations
from mxconv.train.spire_layer import SpireLayer

ALL_OF_IT = 100.0  # a softmax weight beside zeros: exactly 1 in float32


class SpireModel(nn.Module):
    """Random weights of std 0.02, and memory weights that mix all states alike; `load_target` prunes a target instead.

    The names of its state are those of the file.

    Args:
        config: sizes. Past memory of "embeddings" does without the target's states (an ablation of Fig. 5).
    """

    def __init__(self, config: SpireConfig) -> None:
        super().__init__()
        self.config = config
        own = config.decoder
        self.model = SpireBody(own)
        self.lm_head = None if own.tie_word_embeddings else nn.Linear(own.hidden_size, own.vocab_size, bias=False)
        self.spire = Mixture(config.num_layers)
        self._rotary = RotaryEmbedding(own.rope, own.head_dim)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and name != MEMORY_WEIGHTS:
                nn.init.normal_(parameter, std=0.02)
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def load_target(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy embedding, head, final norm and the layers that it is to have from a target's tensors (section 3.2).

        Raises:
            ModelError: the target lacks one, or has it in another shape.
        """
        state = self.state_dict()
        for name, own in state.items():
            if name == MEMORY_WEIGHTS:
                continue
            source = name
            if name.startswith("model.layers."):
                index, _, rest = name.removeprefix("model.layers.").partition(".")
                source = f"model.layers.{self.config.target_layers[int(index)]}.{rest}"
            found = tensors.get(source)
            if found is None or found.shape != own.shape:
                what = "is missing" if found is None else f"has shape {tuple(found.shape)}"
                raise ModelError(
                    f"target: tensor {source} {what}; {tuple(own.shape)} is required, as the draft has it. Give the "
                    "draft the sizes of its target."
                )
            state[name] = found.to(own)
        self.load_state_dict(state)

    def remove_feedback(self) -> None:
        """Let every layer see what went into it, as in an ordinary Transformer, for good (an ablation of Fig. 5)."""
        weights = self.spire.memory_weights
        with torch.no_grad():
            weights.copy_(ALL_OF_IT * torch.eye(*weights.shape))
        weights.requires_grad_(False)

    def forward(self, tokens: Tensor, states: Tensor | None, block: int) -> Tensor:
        """The logits that the draft would have, were each block of tokens proposed behind what the target evaluated.

        Args:
            tokens: (batch, length) int64.
            states: (num_layers, batch, length, hidden_size), what feeds the target's layers that each layer was copied
                from; None with past memory of embeddings. They are given, no gradient is theirs.
            block: k, how many tokens are evaluated behind every prefix whose length is a multiple of k; the draft's own
                memory of them is what they see of each other.

        Returns:
            (batch, length, vocab_size): row t follows token t.

        Raises:
            ModelError: no states where they are read, or of another shape.
        """
        batch, length = tokens.shape
        embedded: Tensor = self.model.embed_tokens(tokens)
        cosines, sines = (part.to(embedded) for part in rotations(self._rotary, length))
        layers = [cast(SpireLayer, layer) for layer in self.model.layers]
        past = self._past_memory(states, embedded)
        made_past = [
            tuple(self._of_blocks(made, block) for made in layer.keys_and_values(each, (cosines, sines)))
            for layer, each in zip(layers, past, strict=True)
        ]
        shares = torch.softmax(self.spire.memory_weights, -1)
        drafted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]  # of the passes so far
        logits = embedded.new_empty(batch, length, self.config.vocab_size)
        for step in range(min(block, length)):  # the token `step` of every block
            at = torch.arange(step, length, block, device=tokens.device)
            here, seen = (cosines[at], sines[at]), self._seen(at, step, length)
            x = embedded[:, at]
            own = [x]
            for layer, of_past, of_block in zip(layers, made_past, drafted, strict=True):
                x = layer(x, of_past, of_block, here, seen)
                own.append(x)
            logits[:, at] = self._head(self.model.norm(x))
            if step + 1 < block:
                for index, layer in enumerate(layers):
                    memory = torch.einsum("l,lbth->bth", shares[index], torch.stack(own))
                    drafted[index].append(layer.keys_and_values(memory, here))
        return logits

    def _past_memory(self, states: Tensor | None, embedded: Tensor) -> list[Tensor]:
        """What each layer sees of tokens that the target evaluated, (batch, length, hidden_size)."""
        if self.config.past_memory == "embeddings":
            return [embedded] * self.config.num_layers
        required = (self.config.num_layers, *embedded.shape)
        if states is None or states.shape != required:
            raise ModelError(
                f"target states: {None if states is None else tuple(states.shape)}; {required} is required, a state of "
                "each token for each layer of the draft. Take those that feed the layers it was copied from."
            )
        return list(states.detach().to(embedded.dtype).unbind())

    def _head(self, x: Tensor) -> Tensor:
        weight: Tensor = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        logits: Tensor = functional.linear(x, weight)
        return logits

    def _of_blocks(self, made: Tensor, block: int) -> Tensor:
        """Of keys or values (batch, length, heads, head_dim) those that each block may see of what is before it.

        Returns:
            (batch, num_blocks, heads, num_seen, head_dim): sinks, and a window less one of neighbours; what lies before
            the text is 0.
        """
        length = made.shape[1]
        num_blocks, (num_sinks, num_near) = -(-length // block), self._num_seen(length)
        sinks = made[:, None, :num_sinks].expand(-1, num_blocks, -1, -1, -1).transpose(2, 3)
        if not num_near:
            return sinks
        padded = functional.pad(made, (0, 0, 0, 0, num_near, 0))
        near = padded.unfold(1, num_near, block)[:, :num_blocks].transpose(3, 4)
        return torch.cat([sinks, near], 3)

    def _num_seen(self, length: int) -> tuple[int, int]:
        """Sinks, and neighbours before a block, of a text of this length."""
        return min(self.config.sink, length), min(self.config.window - 1, length)

    def _seen(self, at: Tensor, step: int, length: int) -> Tensor:
        """(num_blocks, num_seen + step + 1) bool: what the tokens of a pass see of the past and of their blocks."""
        rows, starts = at[:, None], at[:, None] - step
        num_sinks, num_near = self._num_seen(length)
        sinks = torch.arange(num_sinks, device=at.device).expand(len(at), -1)
        near = starts + torch.arange(-num_near, 0, device=at.device)
        in_block = starts + torch.arange(step + 1, device=at.device)
        first, last = self.config.sink, rows - self.config.window
        return torch.cat(
            [sinks < starts, (near >= first) & (near > last), (in_block < first) | (in_block > last)], dim=1
        )


class SpireBody(nn.Module):
    """All that the target has too but its head, named as in a Llama's file."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SpireLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Mixture(nn.Module):
    """How much of each state the memory has that a layer sees, before the softmax."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.memory_weights = nn.Parameter(torch.zeros(num_layers, num_layers + 1))
