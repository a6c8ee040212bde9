"""The reference decoder: token ids in, logits out, in plain float32.

With matrices that obey the row promise of `Matrix`, the logits of a position depend on its token prefix alone:
the same bits whether a prompt goes in at once, in chunks or token by token, whether or not other tokens were
tried in between, and whatever other sequences are in the pass. Speculative decoding then has nothing to
approximate: what a draft proposed is verified by the very numbers that plain decoding computes.
"""

from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.elements import Linear
from mxconv.arrays import F32
from mxconv.engine.attention_window import RetrievedPages, SinkWindow
from mxconv.engine.cache import KVCache
from mxconv.engine.kv_pool import KvDtype, KVPool
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInputs, WeightedMixture, check_fewer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows, StateRoom, States, checked_ids, spans
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix


class Decoder:
    """A model over any matrices, of the parts that its description names.

    Args:
        config: the description.
        weights: the tensors; the 16-bit target and its 4-bit drafts differ in nothing but these.
        name: what messages call the model.

    Raises:
        ModelError: a tensor is missing or has another shape than the configuration says.
    """

    pattern: SinkWindow | None = None  # of a variant
    retrieves = False  # whether a layer attends to pages of the cache that its queries choose
    reads_ahead = False  # whether passes multiply by weights that are read from a disk meanwhile

    def __init__(self, config: ModelConfig, weights: ModelWeights, name: str) -> None:
        self.config = config
        self.name = name
        self.kv_dtype: KvDtype = "fp32"  # of the caches that it makes
        tensors, size = CheckedWeights(weights, name), config.hidden_size
        self.embedding = tensors.matrix(config.embedding, config.vocab_size, size)
        self.position_embedding: Matrix | None = None
        if config.positions is not None:
            self.position_embedding = tensors.matrix(config.positions, config.max_position_embeddings, size)
        self.layer_inputs = config.layer_inputs and WeightedInputs(tensors, config, config.layer_inputs)
        self.layers = [Layer(tensors, config, index) for index in range(config.num_hidden_layers)]
        self.norm = tensors.norm(config.final_norm, size)
        self.output = tensors.projection(Linear(config.head), config.vocab_size, size)
        self._bind()

    @property
    def head(self) -> Matrix:
        """The matrix that logits come from, (vocab_size, hidden_size)."""
        return self.output.matrix

    def new_cache(self, capacity: int = 0, pool: KVPool | None = None) -> KVCache:
        """An empty one that keeps keys and values in `kv_dtype`; a pool has that dtype already. See `KVCache`."""
        return KVCache(self.config, capacity, pool, self.kv_dtype)

    def forward(
        self,
        token_ids: Sequence[int],
        cache: KVCache,
        last_only: bool = False,
        tree: Tree | None = None,
        states: States | None = None,
    ) -> F32:
        """Evaluate tokens of one sequence after those in the cache, and advance it by them.

        The logits of a row are those of its path alone, bit for bit. The cache then holds all rows in their order;
        after a tree that is no chain, `cache.keep` the rows of one path before anything else is evaluated.

        Args:
            token_ids: at least one.
            cache: the keys and values of the tokens before; unchanged when an error is raised.
            last_only: compute the logits of the last token alone, as for a prompt.
            tree: the parent of each token; None makes them a chain.
            states: receives the hidden states that it names, of every row; unchanged when an error is raised.

        Returns:
            (num_tokens, vocab_size) float32, or (1, vocab_size) with `last_only`.

        Raises:
            ModelError: no tokens, a token outside the vocabulary, more positions than the model has, a cache made for
                another model, a tree of another number of rows, or a state that the model does not have.
        """
        return self.forward_batch([SequenceRows(token_ids, cache, tree, 1 if last_only else None, states)])[0]

    def forward_batch(self, sequences: Sequence[SequenceRows]) -> list[F32]:
        """Evaluate rows of several sequences in one pass over the weights, and advance each cache by its own.

        Args:
            sequences: at least one; no two have the same cache or states. Caches, states and lengths are unchanged
                when an error is raised.

        Returns:
            Of each sequence (num_logits, vocab_size) float32, as `forward` gives them: bits of a row's path alone.

        Raises:
            ModelError: no sequences, two with one cache or one `States`, more logits than rows, and what `forward`
                raises for any sequence.
        """
        ids = checked_ids(sequences, self.config, self.name)
        for rows in sequences:
            rows.cache.begin(rows.branches, rows.num_wanted)
        positions = Positions([position for rows in sequences for position in rows.positions])
        rooms = [
            rows.states.room(len(self.layers), rows.num_rows, self.config.hidden_size) if rows.states else None
            for rows in sequences
        ]
        # weights may hold infinities and NaNs that somebody chose to keep: let them flow as IEEE says
        with np.errstate(over="ignore", invalid="ignore"):
            logits = self._evaluate(ids, sequences, positions, rooms)
        for rows, room in zip(sequences, rooms, strict=True):
            rows.cache.advance(rows.num_rows)
            if rows.states and room:
                rows.states.values = room.values
        return [logits[span] for span in spans(rows.num_wanted for rows in sequences)]

    def grow(self, token_ids: Sequence[int], cache: KVCache, vocab_size: int, limits: TreeLimits) -> GrownTree | None:
        """Evaluate a chain of tokens, and below it a tree of the likeliest ones, in one call.

        The cache then holds all rows, as after `forward` with trees. None, and nothing has changed, where this decoder
        evaluates pass by pass alone, as the reference does.

        Args:
            token_ids: at least one, after those in the cache.
            cache: as `forward` takes it.
            vocab_size: how many of the first tokens may be guessed.
            limits: of the tree.

        Raises:
            ModelError: what `forward` raises.
        """
        return None

    def variant(
        self,
        pattern: SinkWindow | None = None,
        name: str | None = None,
        num_experts: int | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> Self:
        """A draft made of this decoder's own weights, which the two share: cheap to make.

        It uses the same KV cache, where it reads what this decoder wrote. What it writes is not what this decoder would
        have: truncate the cache before this one goes on.

        Args:
            pattern: what to attend to; None is everything. Pages are retrieved in layers that see every position.
            name: what messages call it.
            num_experts: that a row is sent to in each layer that has experts, fewer than otherwise; None is as many.
            layers: to evaluate, in their order; None is all of them. Those that are not write nothing to the cache.

        Raises:
            ModelError: no layer has more than `num_experts`, or none attends to keys of every position, of which pages
                could be retrieved.
        """
        if num_experts is not None:
            check_fewer(self.config, num_experts, name or self.name)
        made = copy(self)
        made.name, made.pattern, made.retrieves = name or self.name, pattern, isinstance(pattern, RetrievedPages)
        made.layers = [copy(layer) for layer in (self.layers if layers is None else layers)]
        for layer in made.layers:
            mixer = layer.parts.mixer
            retrieves = isinstance(mixer, Attention) and mixer.window is None
            layer.pattern = pattern if retrieves or not made.retrieves else None
            if num_experts is not None and isinstance(layer.mlp, WeightedMixture):
                layer.mlp = layer.mlp.with_fewer(num_experts)
        if made.retrieves and not any(layer.pattern for layer in made.layers):
            raise ModelError(
                f"{made.name}: pages are to be retrieved, and no layer of {self.config.model_type} attends to keys of "
                "every position; such a layer is required. Use another draft."
            )
        made._bind()
        return made

    def _bind(self) -> None:
        """Prepare passes through `layers`, which are final; the reference has nothing to prepare."""

    def first_inputs(self, ids: NDArray[np.intp], positions: Positions) -> tuple[F32, F32 | None]:
        """The input of the first layer, (num_tokens, hidden_size), and the layers' own embeddings of the tokens,
        (num_layers, num_tokens, size), where the model has such."""
        x = self.embedding.rows(ids)
        if self.config.embedding_multiplier != 1:
            x = x * np.float32(self.config.embedding_multiplier)
        if self.position_embedding is not None:
            x = x + self.position_embedding.rows(np.array(positions.numbers, np.intp))
        return x, self.layer_inputs(ids, x) if self.layer_inputs else None

    def _evaluate(
        self,
        ids: NDArray[np.intp],
        sequences: Sequence[SequenceRows],
        positions: Positions,
        rooms: Sequence[StateRoom | None],
    ) -> F32:
        """Logits of the rows that want them, (sum of num_wanted, vocab_size).

        Caches have room for the rows, whose keys and values are written after their lengths. `rooms` are for the states
        of each sequence.
        """
        places = spans(rows.num_rows for rows in sequences)
        reading = [(room, place) for room, place in zip(rooms, places, strict=True) if room]
        num_layers = len(self.layers)
        x, own = self.first_inputs(ids, positions)
        for stage in range(num_layers + 1):
            for room, place in reading:
                room.take(stage, x[place])
            if stage < num_layers:
                layer = self.layers[stage]
                x = layer(x, sequences, positions, None if own is None else own[layer.index])
        for room, place in reading:
            room.take(num_layers + 1, self.norm(x[place]))
        wanted = np.concatenate(
            [x[place.stop - rows.num_wanted : place.stop] for rows, place in zip(sequences, places, strict=True)]
        )
        if len(wanted) == 0:
            return np.empty((0, self.config.vocab_size), np.float32)
        logits = self.output(self.norm(wanted))
        if self.config.logit_multiplier != 1:
            logits = logits * np.float32(self.config.logit_multiplier)
        if (cap := self.config.logit_cap) is not None:
            for row in logits:  # one at a time: a vectorized tanh may treat the ends of an array differently
                row[...] = np.tanh(row / np.float32(cap)) * np.float32(cap)
        return logits
