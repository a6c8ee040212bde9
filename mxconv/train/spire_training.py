"""Training a SPIRe draft: after every k-th prefix of a text, against what its target predicts there.

Source:
    Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419), section 3
    and the ablations of Fig. 5; what a token computes: formats/spire.md.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.arch.config import ModelConfig
from mxconv.drafts.spire import MEMORY_WEIGHTS, SpireConfig
from mxconv.engine.rope import RotaryEmbedding
from mxconv.errors import ModelError
from mxconv.train.layer_parts import GatedMlp, Projections, heads, initialize, rotate, rotations
from mxconv.train.training_task import FrozenTarget, TrainingTask, distillation_loss, hard_target_loss, mixed_loss
from mxconv.train.windows import Windows

SpireLoss = Literal["mixed", "distillation", "text"]
ALL_OF_IT = 100.0  # a softmax weight beside zeros: exactly 1 in float32


class SpireTask(TrainingTask):
    """A SPIRe draft; the last three arguments are ablations of Fig. 5.

    Args:
        values: the draft's config.json.
        target: what it reads and copies.
        block: k, tokens of a proposal.
        dtype: to which the weights are rounded when they are written.
        loss: mixed, half distillation and half expected acceptance; distillation alone; or the text itself.
        is_pruned: whether it begins as the target's own layers, and not at random.
        has_feedback: whether layers see a mixture of all layers' activations of what the draft proposed.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        target: FrozenTarget,
        block: int,
        dtype: torch.dtype,
        loss: SpireLoss = "mixed",
        is_pruned: bool = True,
        has_feedback: bool = True,
    ) -> None:
        super().__init__(values, target, dtype, [f"token {place}" for place in range(1, block + 1)])
        self.config = SpireConfig.from_dict(self.values)
        self.block, self.loss, self.is_pruned, self.has_feedback = block, loss, is_pruned, has_feedback

    def model(self) -> "SpireModel":
        made = SpireModel(self.config)
        if self.is_pruned:
            made.load_target(self.target.model.state_dict())
        if not self.has_feedback:
            made.remove_feedback()
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        states, theirs = self.target.layers(token_ids, self.config.target_layers)
        logits: Tensor = model(token_ids, states if self.config.past_memory == "target" else None, self.block)
        first = max(windows.num_prompt_tokens - 1, 0)
        made = []
        for place in range(self.block):
            begin = first + (place - first) % self.block
            ours, wanted = logits[:, begin : -1 : self.block], theirs[:, begin : -1 : self.block]
            if self.loss == "text":
                made.append(hard_target_loss(ours, token_ids[:, begin + 1 :: self.block]))
            else:
                made.append((mixed_loss if self.loss == "mixed" else distillation_loss)(ours, wanted))
        return torch.stack(made)


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
        self._rotary = RotaryEmbedding(own.rope, own.head_dim)
        initialize(self)
        # logits of the share that each state has in the memory that a layer attends to
        self.spire = nn.ParameterDict({"memory_weights": torch.zeros(config.num_layers, config.num_layers + 1)})

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
        weights = self.spire["memory_weights"]
        with torch.no_grad():
            weights.copy_(ALL_OF_IT * torch.eye(*weights.shape))
        weights.requires_grad_(False)

    def forward(self, tokens: Tensor, states: Tensor | None, block: int) -> Tensor:
        """The logits of the draft where each block of tokens is proposed after what the target evaluated.

        Args:
            tokens: (batch, length) int64.
            states: (num_layers, batch, length, hidden_size), what feeds the target's layers that each layer was copied
                from; None with past memory of embeddings. They are given, no gradient is theirs.
            block: k, how many tokens are evaluated after every prefix whose length is a multiple of k; they attend to
                each other through the draft's own memory.

        Returns:
            (batch, length, vocab_size): row t follows token t.
        """
        batch, length = tokens.shape
        embedded: Tensor = self.model.embed_tokens(tokens)
        cosines, sines = (part.to(embedded) for part in rotations(self._rotary, length))
        layers = [cast(SpireLayer, layer) for layer in self.model.layers]
        past = [embedded] * len(layers) if states is None else list(states.detach().to(embedded.dtype).unbind())
        made_past = [
            tuple(self._of_blocks(made, block) for made in layer.keys_and_values(each, (cosines, sines)))
            for layer, each in zip(layers, past, strict=True)
        ]
        shares = torch.softmax(self.spire["memory_weights"], -1)
        drafted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]  # of the passes so far
        logits = embedded.new_empty(batch, length, self.config.decoder.vocab_size)
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

    def _head(self, x: Tensor) -> Tensor:
        weight: Tensor = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        logits: Tensor = functional.linear(x, weight)
        return logits

    def _of_blocks(self, made: Tensor, block: int) -> Tensor:
        """Select from keys or values (batch, length, heads, head_dim) those that each block may attend to before it.

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
    """Embedding, layers and norm, named as in a Llama's file."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SpireLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class SpireLayer(nn.Module):
    """A layer, named as in a Llama's file: one token of every block at a time, over keys and values made of memory."""

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
        """Evaluate one token of every block.

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
        """Keys and values of memory (batch, n, hidden_size), each (batch, n, num_key_value_heads, head_dim)."""
        h = self.input_layernorm(memory)
        keys = heads(self.self_attn.k_proj(h), self.config)
        values = heads(self.self_attn.v_proj(h), self.config)
        if self.self_attn.k_norm is not None:
            keys = self.self_attn.k_norm(keys)
        return rotate(keys, *rotations), values
