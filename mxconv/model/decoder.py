"""The reference decoder: token ids in, logits out, in plain float32.

With matrices that obey the row promise of `Matrix`, the logits of a position depend on its token prefix alone:
the same bits whether a prompt goes in at once, in chunks or token by token, and whether or not other tokens were
tried in between. Speculative decoding then has nothing to approximate: what a draft proposed is verified by the
very numbers that plain decoding computes.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from mxconv.arrays import F32
from mxconv.errors import ModelError
from mxconv.kernels.rowwise import rms_norm
from mxconv.model.cache import KVCache
from mxconv.model.config import ModelConfig
from mxconv.model.layer import Layer
from mxconv.model.rope import RotaryEmbedding
from mxconv.model.sink_window import SinkWindow
from mxconv.model.skipped import Skipped
from mxconv.model.tree import Tree
from mxconv.model.weights import CheckedWeights, Weights


class Decoder:
    """A llama, mistral, qwen2 or qwen3 model over any matrices.

    Args:
        config: the architecture.
        weights: the tensors; the 16-bit target and its 4-bit drafts differ in nothing but these.
        name: what messages call the model.

    Raises:
        ModelError: a tensor is missing or has another shape than the configuration says.
    """

    def __init__(self, config: ModelConfig, weights: Weights, name: str) -> None:
        self.config = config
        self.name = name
        tensors = CheckedWeights(weights, name)
        self.embedding = tensors.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.layers = [Layer.take(tensors, config, index) for index in range(config.num_hidden_layers)]
        self.norm = tensors.vector("model.norm.weight", config.hidden_size)
        self.head = tensors.matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        self.rotary = RotaryEmbedding(config.rope, config.head_dim)

    def forward(
        self, token_ids: Sequence[int], cache: KVCache, last_only: bool = False, tree: Tree | None = None
    ) -> F32:
        """Evaluate tokens behind those in the cache, and advance it by them.

        The logits of a row are those of its path alone, bit for bit. The cache then holds all rows in their order;
        behind a tree that is no chain, `cache.keep` the rows of one path before anything else is evaluated.

        Args:
            token_ids: at least one.
            cache: the keys and values of the tokens before; unchanged when an error is raised.
            last_only: compute the logits of the last token alone, as for a prompt.
            tree: where each token hangs; None makes them a chain.

        Returns:
            (num_tokens, vocab_size) float32, or (1, vocab_size) with `last_only`.

        Raises:
            ModelError: no tokens, a token outside the vocabulary, more positions than the model has, a cache made for
                another model, or a tree of another number of rows.
        """
        tree = tree or Tree.chain(len(token_ids) or 1)
        ids = self._checked(token_ids, cache, tree)
        cache.reserve(len(ids))
        start = cache.length - tree.num_cached
        rotations = self.rotary.rotations([start + depth for depth in tree.depths[tree.num_cached :]])
        # weights may hold infinities and NaNs that somebody chose to keep: let them flow as IEEE says
        with np.errstate(over="ignore", invalid="ignore"):
            logits = self._evaluate(self.embedding.rows(ids), cache, rotations, tree, 1 if last_only else len(ids))
        cache.advance(len(ids))
        return logits

    def variant(
        self, skipped: Skipped | None = None, sink_window: SinkWindow | None = None, name: str | None = None
    ) -> Self:
        """A draft made of this decoder's own weights, which the two share: cheap to make.

        It uses the same KV cache, where it reads what this decoder wrote and writes nothing for attention that it
        skips. What it did write is not what this decoder would have: truncate the cache before this one goes on.

        Args:
            skipped: the parts to leave out; None is none.
            sink_window: what to attend to; None is everything. Neither adds to what a variant already leaves out.
            name: what messages call it.

        Raises:
            ModelError: `skipped` names a layer that there is not.
        """
        skipped = skipped or Skipped()
        skipped.check(self.config.num_hidden_layers)
        made = copy.copy(self)
        made.name = name or self.name
        made.layers = [
            replace(
                layer,
                skips_attention=layer.index in skipped.attention,
                skips_mlp=layer.index in skipped.mlp,
                sink_window=sink_window,
            )
            for layer in self.layers
        ]
        return made

    def _evaluate(self, x: F32, cache: KVCache, rotations: tuple[F32, F32], tree: Tree, num_logits: int) -> F32:
        """Logits of the last `num_logits` tokens.

        Args:
            x: (num_tokens, hidden_size) their embeddings; may be overwritten.
            cache: with room for the tokens; their keys and values are written behind its length.
            rotations: cosines and sines of their positions, each (num_tokens, 1, head_dim / 2).
            tree: where they hang.
        """
        for layer in self.layers:
            x = layer(x, cache, rotations, tree)
        return self.head.multiply(rms_norm(x[-num_logits:], self.norm, self.config.rms_norm_eps))

    def _checked(
        self, token_ids: Sequence[int], cache: KVCache, tree: Tree
    ) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        ids = np.array(token_ids, dtype=np.intp)
        if len(ids) == 0:
            raise ModelError(f"{self.name}: 0 tokens to evaluate; at least one is required. Give a prompt.")
        outside = ids[(ids < 0) | (ids >= self.config.vocab_size)]
        if len(outside):
            raise ModelError(
                f"{self.name}: token id {outside[0]}; ids from 0 to {self.config.vocab_size - 1} are required. "
                "Use the tokenizer that belongs to the model."
            )
        if tree.num_rows != len(ids):
            raise ModelError(f"{self.name}: a tree of {tree.num_rows} rows; {len(ids)}, a token each, are required.")
        if tree.num_cached > cache.length:
            raise ModelError(
                f"{self.name}: a tree of which {tree.num_cached} rows are evaluated; the {cache.length} that the cache "
                "holds at most are required."
            )
        num_positions = cache.length - tree.num_cached + 1 + tree.deepest
        if num_positions > self.config.max_position_embeddings:
            raise ModelError(
                f"{self.name}: {num_positions} positions; the model has "
                f"{self.config.max_position_embeddings} (max_position_embeddings). "
                "Shorten the prompt or generate fewer tokens."
            )
        if not cache.fits(self.config):
            raise ModelError(
                f"{self.name}: a KV cache of {cache.num_layers} layers, {cache.num_key_value_heads} heads and head "
                f"size {cache.head_dim}; {self.config.num_hidden_layers}, {self.config.num_key_value_heads} and "
                f"{self.config.head_dim} are required. Give this model a cache of its own."
            )
        return ids
