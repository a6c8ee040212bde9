"""Checkpoints of every family beside transformers' own logits; without transformers there are none."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import ModelWeights

pytest.importorskip("transformers", reason="torch and transformers make these checkpoints")
NUM_TOKENS = 80


@dataclass(frozen=True)
class Family:
    """A tiny model as transformers saved it, and what transformers makes of some tokens, (NUM_TOKENS, vocabulary)."""

    folder: Path
    config: ModelConfig
    weights: ModelWeights
    token_ids: list[int]
    expected: np.ndarray

    @property
    def decoder(self) -> Decoder:
        """In NumPy."""
        return Decoder(self.config, self.weights, "tiny")


@pytest.fixture(scope="session")
def family_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Makes (once) the checkpoint of a family."""
    from family_checkpoints import logits_of, make_model, write_checkpoint

    @cache
    def make(name: str) -> Family:
        folder = tmp_path_factory.mktemp("family")
        model = make_model(name)
        write_checkpoint(model, folder)
        token_ids = [int(token) for token in np.random.default_rng(7).integers(0, 96, NUM_TOKENS)]
        expected = logits_of(model, token_ids)
        config = describe_file(folder / "config.json")
        with open_checkpoint(folder) as checkpoint:
            weights = dense_weights(checkpoint.tensors, config)
        return Family(folder, config, weights, token_ids, expected)

    return make
