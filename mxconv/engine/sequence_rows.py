"""The input of a pass: rows of one sequence or of several, each with a cache and a tree of its own.

Drafts that read the target name the hidden states that the pass leaves for them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError


@dataclass(frozen=True)
class Reads:
    """The states that a draft reads of the model above it."""

    layers: tuple[int, ...] = ()  # ascending, numbered as `States` has them
    normed_last: bool = False  # whether it reads the state after the final norm too

    @property
    def num_states(self) -> int:
        return len(self.layers) + self.normed_last

    def __or__(self, other: "Reads") -> "Reads":
        """The states that two drafts read together."""
        return Reads(tuple(sorted({*self.layers, *other.layers})), self.normed_last or other.normed_last)

    def places(self, within: "Reads") -> list[int]:
        """Where these states lie among those of a reader of these and perhaps others."""
        places = [within.layers.index(layer) for layer in self.layers]
        return [*places, within.num_states - 1] if self.normed_last else places


class States:
    """Names states of the residual stream, and receives them from each pass, for all its rows.

    `values` is (num_states, num_rows, hidden_size) float32, the states in the order of `layers` and then the normed
    one: of the last pass, None before the first. Each pass makes an array of its own. A row's states depend on its path
    alone, bit for bit.

    Args:
        layers: ascending. 0 is the embedding, i what layer i - 1 gives: transformers' `hidden_states` but for the last
            layer's, which is not normed here.
        normed_last: whether the state after the final norm, from which logits are made, is wanted too.

    Raises:
        ModelError: no state is named, or layers that do not ascend from 0 on.
    """

    def __init__(self, layers: Sequence[int] = (), normed_last: bool = False) -> None:
        if not layers and not normed_last:
            raise ModelError("states: none is named; a layer or the normed state is required. Name one, or read none.")
        if any(layer >= later for layer, later in pairwise([-1, *layers])):
            raise ModelError(f"states of layers {list(layers)}; ascending numbers from 0 on are required. Sort them.")
        self.layers = tuple(layers)
        self.normed_last = normed_last
        self.values: F32 | None = None

    def check(self, num_layers: int, name: str) -> None:
        """Raises ModelError where a layer is named that a model of `num_layers` does not have."""
        if (last := max(self.layers, default=0)) > num_layers:
            raise ModelError(
                f"{name}: the state of layer {last}; 0 (the embedding) to {num_layers} (what the last layer gives) are "
                "required. Name states that this model has."
            )

    def room(self, num_layers: int, num_rows: int, hidden_size: int) -> "StateRoom":
        """For the states of one pass through a model of `num_layers`."""
        stages = [*self.layers, *([num_layers + 1] if self.normed_last else [])]
        return StateRoom(stages, np.empty((len(stages), num_rows, hidden_size), np.float32))


@dataclass(frozen=True, eq=False)
class StateRoom:
    """The states of one sequence while a pass computes them."""

    stages: list[int]  # of each a layer that it goes into, or their number for what the last gives, + 1 for the normed
    values: F32  # (len(stages), num_rows, hidden_size), to be filled

    def take(self, stage: int, x: F32) -> None:
        """Copy the state at a stage if it is wanted."""
        if stage in self.stages:
            self.values[self.stages.index(stage)] = x


# What a row attends to after the rows of the cache that are not of its tree: its path; all rows of the pass, in layers
# with a window perhaps those up to it alone; nothing, so that its own keys are not needed
RowMask = Literal["path", "block", "block, causal in windows", "cache"]


@dataclass(frozen=True, eq=False)
class SequenceRows:
    """The rows of one sequence in a pass; the decoder that evaluates them checks them."""

    token_ids: Sequence[int]  # of the rows, at least one
    cache: KVCache  # the keys and values of the tokens before them
    tree: Tree | None = None  # the parent of each row, 64 rows at most; None makes them a chain of any length
    num_logits: int | None = None  # how many of the last rows want logits, from 0 on; None is all
    states: States | None = None  # receives the hidden states that it names; None copies none
    sees: "RowMask" = "path"

    @cached_property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @cached_property
    def num_wanted(self) -> int:
        """How many of the last rows want logits."""
        return self.num_rows if self.num_logits is None else self.num_logits

    @cached_property
    def branches(self) -> Tree:
        """The tree; a chain where none was given."""
        return self.tree or Tree.chain(self.num_rows)

    @cached_property
    def positions(self) -> Sequence[int]:
        """The position of each row, before the pass: how many tokens precede it on its path."""
        start, tree = self.cache.length + self.cache.num_left_out, self.tree
        if tree is None:
            return range(start, start + self.num_rows)
        return [start - tree.num_cached + depth for depth in tree.depths[tree.num_cached :]]

    def checked_ids(self, config: ModelConfig, name: str) -> NDArray[np.intp]:
        """The token ids. Raises ModelError where a model of this configuration cannot evaluate the rows."""
        ids = np.array(self.token_ids, dtype=np.intp)
        if len(ids) == 0:
            raise ModelError(f"{name}: 0 tokens to evaluate; at least one is required. Give a prompt.")
        if min(self.token_ids) < 0 or max(self.token_ids) >= config.vocab_size:
            outside = ids[(ids < 0) | (ids >= config.vocab_size)]
            raise ModelError(
                f"{name}: token id {outside[0]}; ids from 0 to {config.vocab_size - 1} are required. "
                "Use the tokenizer that belongs to the model."
            )
        tree = self.branches
        if tree.num_rows != len(ids):
            raise ModelError(f"{name}: a tree of {tree.num_rows} rows; {len(ids)}, a token each, are required.")
        if tree.num_cached > self.cache.length:
            raise ModelError(
                f"{name}: a tree of which {tree.num_cached} rows are evaluated; the {self.cache.length} that the cache "
                "holds at most are required."
            )
        if not 0 <= self.num_wanted <= len(ids):
            raise ModelError(
                f"{name}: logits of the last {self.num_wanted} rows; 0 to {len(ids)}, all that there are, are required."
            )
        num_positions = max(self.positions) + 1
        if num_positions > config.max_position_embeddings:
            raise ModelError(
                f"{name}: {num_positions} positions; the model has "
                f"{config.max_position_embeddings} (max_position_embeddings). "
                "Shorten the prompt or generate fewer tokens."
            )
        if config is not self.cache.config and not self.cache.fits(config):
            own, sizes = self.cache.config, config.state_sizes
            what = f"whose states are of other sizes; {sizes} are required"
            if sizes is None:
                what = (
                    f"of {own.num_hidden_layers} layers, {own.num_key_value_heads} heads and head size {own.head_dim}; "
                    f"{config.num_hidden_layers}, {config.num_key_value_heads} and {config.head_dim} are required"
                )
            raise ModelError(f"{name}: a KV cache {what}. Give this model a cache of its own.")
        if self.states is not None:
            self.states.check(config.num_hidden_layers, name)
        return ids


def checked_ids(sequences: Sequence[SequenceRows], config: ModelConfig, name: str) -> NDArray[np.intp]:
    """The token ids of a pass, one sequence after another. Raises ModelError for what `Decoder` cannot evaluate."""
    if not sequences:
        raise ModelError(f"{name}: 0 sequences to evaluate; at least one is required. Leave the pass out.")
    if len(sequences) == 1:
        return sequences[0].checked_ids(config, name)
    _require_own(name, "KV cache", [rows.cache for rows in sequences])
    _require_own(name, "States", [rows.states for rows in sequences if rows.states is not None])
    return np.concatenate(
        [rows.checked_ids(config, f"{name}, sequence {index}") for index, rows in enumerate(sequences)]
    )


def spans(counts: Iterable[int]) -> list[slice]:
    """The slice of each of several runs that follow one another."""
    return [slice(start, stop) for start, stop in pairwise(accumulate(counts, initial=0))]


def _require_own(name: str, what: str, things: Sequence[object]) -> None:
    if len({id(thing) for thing in things}) < len(things):
        raise ModelError(
            f"{name}: two sequences of a pass with the same {what}; one each is required. Give every sequence its own."
        )
