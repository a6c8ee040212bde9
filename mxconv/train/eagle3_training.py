"""Training an EAGLE-3 head: it drafts after every prefix of a text, and learns what its target predicts there.

The first token is drafted from the target's states, each further one from what the head gave itself, as at run time:
the training-time test. A head that read the target's states alone would never meet its own errors.

Source:
    Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
    (arXiv 2503.01840), section 3; what a token computes: formats/eagle3.md.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mxconv.arch.config import ModelConfig
from mxconv.arrays import I64
from mxconv.drafts.eagle3 import Eagle3Config
from mxconv.engine.rope import RotaryEmbedding
from mxconv.train.layer_parts import GatedMlp, Projections, heads, initialize, rotate, rotations
from mxconv.train.training_task import FrozenTarget, TrainingTask, distillation_loss, num_parameters
from mxconv.train.windows import Windows

MOST_ROWS = 512  # that attend at once: shares of every row to every other are not kept for the way back

Seen = tuple[Tensor, Tensor]


class Eagle3Task(TrainingTask):
    """An EAGLE-3 head.

    The embedding is the target's, frozen and left out of the file, as the format allows: it is most of a head's bytes,
    and the target keeps it anyway. Output head and final norm begin as the target's, whose tokens are to be predicted.
    The layer begins as the target's last one, but for what its attention takes in of the embedding.

    Args:
        values: the head's config.json, with the layers that it reads.
        target: what it reads and copies.
        tokens: (draft_vocab_size,) the target's ids that it knows, rising.
        block: tokens that it drafts after every prefix.
        dtype: to which the weights are rounded when they are written.
    """

    def __init__(
        self, values: Mapping[str, object], target: FrozenTarget, tokens: I64, block: int, dtype: torch.dtype
    ) -> None:
        super().__init__(values, target, dtype, [f"token {place}" for place in range(1, block + 1)])
        self.config = Eagle3Config.from_dict(self.values)
        self.tokens = tokens
        self.block = block
        self._known = torch.from_numpy(tokens).to(target.model.device)

    def model(self) -> "Eagle3Model":
        made = Eagle3Model(self.config)
        theirs = self.target.model
        head = theirs.get_output_embeddings().weight
        made.load_head(theirs.model.norm.weight.cpu(), head[self._known].cpu())
        if hasattr(theirs.model, "layers"):
            made.load_layer({name: tensor.cpu() for name, tensor in theirs.model.layers[-1].named_parameters()})
        return made

    def losses(self, model: nn.Module, token_ids: Tensor, windows: Windows) -> Tensor:
        """Cross-entropy against the target's distribution over the tokens that the head knows, for each place.

        The prefixes of a text are the same for each place: those that end with the first token that the target wrote,
        and longer ones.
        """
        assert self.config.layer_ids is not None
        states, theirs = self.target.layers(token_ids, (0, *self.config.layer_ids), self._known)  # 0 is the embedding
        logits: list[Tensor] = model(states[1:], states[0], self.block)
        first = max(windows.num_prompt_tokens - 2, 0)  # row i follows token i + 1
        return torch.stack(
            [distillation_loss(row[:, first:], theirs[:, 1 + step + first :]) for step, row in enumerate(logits)]
        )

    def flops_per_token(self, model: nn.Module) -> float:
        """Six a weight of the head and step, but for the fusion, which is done once; two of the target."""
        own = num_parameters(model)
        fusion = sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("fc.weight"))
        return 6.0 * (self.block * own - (self.block - 1) * fusion) + 2.0 * self.target.num_parameters

    def constants(self) -> dict[str, Tensor]:
        """The tokens that the head knows, as its file has them: offsets of their ids (d2t) and a mask (t2d)."""
        known = np.zeros(self.config.vocab_size, np.bool_)
        known[self.tokens] = True
        return {"d2t": torch.from_numpy(self.tokens - np.arange(len(self.tokens))), "t2d": torch.from_numpy(known)}


class Eagle3Model(nn.Module):
    """Random weights of std 0.02; `load_head` takes the output head of a target, `load_layer` a layer.

    The names of its state are those of the file, without the embedding, which is left to the target.

    Args:
        config: of a new head, as `config_for` makes it: one Llama layer, and no norm before or after the fusion.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        assert config.layer_ids is not None
        self.config = config
        layer, size = config.layer, config.layer.hidden_size
        self.fc = nn.Linear(len(config.layer_ids) * config.target_hidden_size, size, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(layer)])
        self.norm = nn.RMSNorm(size, layer.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self._rotary = RotaryEmbedding(layer.rope, layer.head_dim)
        initialize(self)

    @torch.no_grad()
    def load_head(self, norm: Tensor, head: Tensor) -> None:
        """Copy the target's final norm (hidden_size,) and, of its output head, the rows of the tokens known here."""
        self.norm.weight.copy_(norm)
        self.lm_head.weight.copy_(head)

    @torch.no_grad()
    def load_layer(self, theirs: Mapping[str, Tensor]) -> None:
        """Begin as a Llama's layer over the deepest state that is read; nothing changes where a tensor does not fit."""
        size, layer_ids = self.config.layer.hidden_size, self.config.layer_ids
        assert layer_ids is not None
        pairs: list[tuple[Tensor, Tensor]] = []
        for name, parameter in self.layers[0].named_parameters():
            if name == "input_layernorm.weight":  # of the embedding
                continue
            source = theirs.get("input_layernorm.weight" if name == "hidden_norm.weight" else name)
            takes_in_both = name.partition(".")[2] in ("q_proj.weight", "k_proj.weight", "v_proj.weight")
            own = parameter[:, size:] if takes_in_both else parameter  # the feature comes after the embedding
            if source is None or source.shape != own.shape:
                return
            pairs.append((own, source))
        for own, source in pairs:
            own.copy_(source)
        deepest = layer_ids.index(max(layer_ids))
        self.fc.weight.zero_()
        self.fc.weight[:, deepest * size : (deepest + 1) * size] = torch.eye(size)

    def forward(self, states: Tensor, embedded: Tensor, block: int) -> list[Tensor]:
        """The logits of each token that it drafts; the features of a step go on from those of the step before.

        Args:
            states: (num_states, batch, length, target_hidden_size) in the order of the fusion; given, no gradient is
                theirs.
            embedded: (batch, length, hidden_size), the target's embeddings of the text's tokens, more than `block`.
            block: how many tokens are drafted after each prefix, those of the text.

        Returns:
            `block` tensors (batch, length - 1 - step, draft_vocab_size): row i of step s has read the states of tokens
            0 to i, follows token i + 1 + s, and is of the next token.
        """
        length = embedded.shape[1]
        cosines, sines = (part.to(embedded) for part in rotations(self._rotary, length))
        seen: list[Seen] = []
        x, made = self.fc(torch.cat(list(states.detach().to(embedded.dtype)), -1))[:, :-1], []
        for step in range(block):
            at = slice(1 + step, None)
            x = self.layers[0](x[:, : length - 1 - step], embedded[:, at], seen, (cosines[at], sines[at]))
            made.append(self.lm_head(self.norm(x)))
        return made


class Eagle3Layer(nn.Module):
    """A layer, named as in the head's file, for one step of what is drafted after every prefix of a text at once.

    Attention takes in an embedding and a feature, each normed. Row i of any step belongs to the same prefix. It attends
    to the first step's rows up to its own, and to its own row alone of each later step: the past of a chain drafted
    after that prefix (section 3.2 and Fig. 6).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.config = config
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.self_attn = Projections(config, 2 * size)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, embedded: Tensor, seen: list[Seen], rotations: tuple[Tensor, Tensor]) -> Tensor:
        """A step of all prefixes.

        Args:
            x: (batch, n, hidden_size), features.
            embedded: the same shape, of the tokens that the features go with.
            seen: keys and values (batch, at least n, num_key_value_heads, head_dim) of the steps before; this step's
                are added.
            rotations: of the rows, (n, 1, head_dim / 2) each.
        """
        own = self.self_attn
        taken = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], -1)
        queries, keys, values = (heads(made(taken), self.config) for made in (own.q_proj, own.k_proj, own.v_proj))
        seen.append((rotate(keys, *rotations), values))
        x = x + own.o_proj(attend(rotate(queries, *rotations), seen))
        added: Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


def attend(queries: Tensor, seen: Sequence[Seen], most_rows: int = MOST_ROWS) -> Tensor:
    """Attention of every row to the first step up to itself, and to each later step at its own place.

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
    """Attention of the rows from `start` on; `later` are keys and values of one step after the other."""
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
