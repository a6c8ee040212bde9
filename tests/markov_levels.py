"""Levels whose next token depends on the last one alone, so that what they draw can be written down."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tiny_levels import record, tiny_config

from mxconv.engine.cache import KVCache
from mxconv.engine.tree import Tree
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.round import Level


@dataclass
class Markov:
    """A model whose next token depends on the last one alone: distributions that can be written down.

    Args:
        table: (vocab_size, vocab_size) logits after each token.
    """

    table: np.ndarray
    name: str = "markov"

    @cached_property
    def config(self) -> Any:
        return tiny_config(64, num_layers=1, vocab_size=len(self.table))

    def new_cache(self) -> KVCache:
        return KVCache(self.config)

    def forward(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        last_only: bool = False,
        tree: Tree | None = None,
        states: None = None,
    ) -> np.ndarray:
        cache.reserve(len(tokens))
        cache.advance(len(tokens))
        return self.table[list(tokens[-1:] if last_only else tokens)]


def markov(name: str, table: np.ndarray) -> LoadedLevel:
    return LoadedLevel(record(name), Markov(table))  # type: ignore[arg-type]


def pairs_of(target: Level, size: int, num_texts: int) -> np.ndarray:
    """Counts (size, size) of the first two tokens after token 0 of many texts that a level writes by rounds."""
    pairs = np.zeros((size, size))
    for _ in range(num_texts):
        text = [0]
        while len(text) < 3:
            text += target.round(text, 5).tokens
        pairs[text[1], text[2]] += 1
    return pairs


def tables(sizes: Sequence[int] = (5, 5, 5), spread: float = 1.0) -> list[np.ndarray]:
    """Logits of a target and of drafts that resemble it, the less the further down; each with its own padding."""
    rng = np.random.default_rng(7)
    largest = max(sizes)
    common = rng.standard_normal((largest, largest)) * spread
    made = []
    for number, size in enumerate(sizes):
        table = common + rng.standard_normal((largest, largest)) * 0.7 * number
        made.append(table[:size, :size].astype(np.float32))
    return made
