"""Training a DFlash head: after places of a text drawn at random, it drafts a whole block, as at run time.

Every row of a block is a mask but the first, an anchor of the text, so that a pass trains all tokens of a proposal at
once. Blocks of one text share its memory and do not see each other.

Source:
    Chen, Liang and Liu, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036), section 4.2 and
    Eq. 4; what a block computes: formats/dflash.md.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxconv.arch.config import ModelConfig
from mxconv.arrays import I64
from mxconv.drafts.readers.dflash_config import DflashConfig
from mxconv.engine.rope import RotaryEmbedding
from mxconv.train.eagle3_training import vocabulary_tables
from mxconv.train.layer_parts import GatedMlp, Projections, heads, initialize, rotate, rotations
from mxconv.train.losses import distillation_loss
from mxconv.train.training_task import FrozenTarget, TrainingTask, num_parameters
from mxconv.train.windows import Windows

DECAY = 0.5  # gamma of Eq. 4 as a share of the block: the paper has 7 of 16, 5 of 10 and 4 of 8


class DflashTask(TrainingTask):
    """A DFlash head.

    The embedding is the target's, frozen and left out of the file, as the format allows; so is the output head where
    the head knows all tokens. Else the head's own begins as the target's rows, and trains. Layers begin as the target's
    last ones, over a fusion that gives them its deepest state.

    Args:
        values: the head's config.json, with the layers that it reads.
        target: what it reads and copies.
        tokens: (draft_vocab_size,) the target's ids that it knows, rising.
        spacing: tokens of a window for each block that is drafted in it.
        dtype: to which the weights are rounded when they are written.
    """

    def __init__(
        self, values: Mapping[str, object], target: FrozenTarget, tokens: I64, spacing: int, dtype: torch.dtype
    ) -> None:
        self.config = DflashConfig.from_dict(values)
        num_drafted = self.config.most_tokens
        super().__init__(values, target, dtype, [f"token {place}" for place in range(1, num_drafted + 1)])
        self.tokens, self.spacing = tokens, spacing
        device = target.model.device
        self._known = torch.from_numpy(tokens).to(device)
        shares = torch.exp(-torch.arange(num_drafted) / (DECAY * self.config.block_size))
        self._shares = (shares / shares.mean()).to(device)

    @property
    def _knows_all(self) -> bool:
        return len(self.tokens) == self.config.vocab_size

    def model(self) -> "DflashModel":
        made = DflashModel(self.config)
        made.load_target(self.target.model.state_dict(), self.target.model.config.num_hidden_layers)
        if made.lm_head is not None:
            made.lm_head.weight.data.copy_(self.target.model.get_output_embeddings().weight[self._known])
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """Cross-entropy against the target's distribution over the tokens that the head knows, for each row.

        Anchors are the prompt's last token and later ones, as in decoding. Gradients are weighted by Eq. 4, and values
        are not, so that they are nats.
        """
        assert self.config.layer_ids is not None
        states, theirs = self.target.layers(token_ids, self.config.layer_ids, self._known)
        size, first = self.config.block_size, max(windows.num_prompt_tokens - 1, 1)
        places = torch.randperm(windows.length - size + 2 - first)  # those after which the target says all of a block
        anchors = (first + places[: max(len(places) // self.spacing, 1)]).sort().values.to(token_ids.device)
        ids = token_ids.new_full((len(token_ids), len(anchors), size), self.config.mask_token_id)
        ids[..., 0] = token_ids[:, anchors]
        embedded = self.target.model.get_input_embeddings()(ids)
        head = self.target.model.get_output_embeddings().weight if self._knows_all else None
        logits: Tensor = model(states, embedded, anchors, head)
        losses = torch.stack(
            [distillation_loss(row, theirs[:, anchors + step]) for step, row in enumerate(logits.unbind(2))]
        )
        return losses.detach() + self._shares * (losses - losses.detach())

    def flops_per_token(self, model: nn.Module) -> float:
        """Six a weight of the head and row of a block, but for the fusion, once a token; two of the target."""
        own, rows = num_parameters(model), self.config.block_size / self.spacing
        fusion = sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("fc.weight"))
        return 6.0 * (rows * (own - fusion) + fusion) + 2.0 * self.target.num_parameters

    def constants(self) -> dict[str, Tensor]:
        return {} if self._knows_all else vocabulary_tables(self.tokens, self.config.vocab_size)


class DflashModel(nn.Module):
    """Random weights of std 0.02; `load_target` takes what fits of a target.

    The names of its state are those of the file, without the embedding, and without the output head where the head
    knows all tokens: those are left to the target. The config names the layers that are read, and no window.
    """

    def __init__(self, config: DflashConfig) -> None:
        super().__init__()
        assert config.layer_ids is not None
        self.config = config
        layer = config.layer
        size, eps, num_states = layer.hidden_size, layer.rms_norm_eps, len(config.layer_ids)
        self.fc = nn.Linear(num_states * size, size, bias=False)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.layers = nn.ModuleList(DflashLayer(layer) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(size, eps)
        knows_all = config.draft_vocab_size == config.vocab_size
        self.lm_head = None if knows_all else nn.Linear(size, config.draft_vocab_size, bias=False)
        self._rotary = RotaryEmbedding(layer.rope, layer.head_dim)
        initialize(self)

    @torch.no_grad()
    def load_target(self, theirs: Mapping[str, Tensor], num_layers: int) -> None:
        """Begin as a target's last layers and norms, over its deepest state that is read, wherever a tensor fits."""
        size, layer_ids = self.config.layer.hidden_size, self.config.layer_ids
        assert layer_ids is not None
        first = num_layers - self.config.num_layers
        for name, parameter in self.named_parameters():
            place, _, rest = name.removeprefix("layers.").partition(".")
            source = f"model.layers.{first + int(place)}.{rest}" if place.isdecimal() else f"model.{name}"
            if name == "hidden_norm.weight":
                source = f"model.layers.{num_layers - 1}.input_layernorm.weight"
            if source in theirs and theirs[source].shape == parameter.shape:
                parameter.copy_(theirs[source])
        deepest = layer_ids.index(max(layer_ids))
        self.fc.weight.zero_()
        self.fc.weight[:, deepest * size : (deepest + 1) * size] = torch.eye(size)

    def forward(self, states: Tensor, embedded: Tensor, anchors: Tensor, head: Tensor | None = None) -> Tensor:
        """The logits of each token that it drafts, (batch, blocks, block_size - 1, draft_vocab_size); see `hidden`.

        `head`, (draft_vocab_size, hidden_size), is the target's where there is no other.
        """
        weight = head if self.lm_head is None else self.lm_head.weight
        assert weight is not None, "one of them is there"
        return functional.linear(self.hidden(states, embedded, anchors)[:, :, self.config.first_row :], weight)

    def hidden(self, states: Tensor, embedded: Tensor, anchors: Tensor) -> Tensor:
        """The normed states of all rows of blocks, (batch, blocks, block_size, hidden_size).

        Args:
            states: (num_states, batch, length, hidden_size) in the order of the fusion; given, no gradient is theirs.
            embedded: (batch, blocks, block_size, hidden_size), the target's embeddings of the blocks' tokens.
            anchors: (blocks,) the position of each block's first row; it sees the memory of all tokens before.
        """
        blocks, size = embedded.shape[1:3]
        length, device = states.shape[2], embedded.device
        memory = self.hidden_norm(self.fc(torch.cat(list(states.detach().to(embedded.dtype)), -1)))
        rows = (anchors[:, None] + torch.arange(size, device=device)).flatten()
        block_of = torch.arange(blocks, device=device).repeat_interleave(size)
        sees = torch.cat(
            [torch.arange(length, device=device) < anchors[block_of, None], block_of == block_of[:, None]], 1
        )
        positions = torch.cat([torch.arange(length, device=device), rows])
        cosines, sines = (part.to(embedded)[positions] for part in rotations(self._rotary, length + size))
        x = embedded.flatten(1, 2)
        for layer in self.layers:
            x = layer(x, memory, sees, (cosines, sines))
        normed: Tensor = self.norm(x)
        return normed.reshape(*embedded.shape)


class DflashLayer(nn.Module):
    """A layer, named as in the head's file, over all blocks of a text at once."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Projections(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, memory: Tensor, sees: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
        """What follows the rows of blocks, whose keys and values go with those of the text's memory.

        Args:
            x: (batch, rows, hidden_size).
            memory: (batch, length, hidden_size).
            sees: (rows, length + rows) bool.
            rotations: of the memory's tokens and then of the rows, (length + rows, 1, head_dim / 2) each.
        """
        own, num_rows = self.self_attn, x.shape[1]
        assert own.q_norm is not None and own.k_norm is not None, "its layers are Qwen 3's"
        taken = self.input_layernorm(x)
        attended = torch.cat([memory, taken], 1)
        queries = rotate(own.q_norm(heads(own.q_proj(taken), self.config)), *(part[-num_rows:] for part in rotations))
        keys = rotate(own.k_norm(heads(own.k_proj(attended), self.config)), *rotations)
        values = heads(own.v_proj(attended), self.config)
        queries, keys, values = (made.transpose(1, 2).to(values) for made in (queries, keys, values))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, sees, enable_gqa=True)
        x = x + own.o_proj(mixed.transpose(1, 2).flatten(2))
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added
