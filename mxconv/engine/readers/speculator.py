"""The MLP speculator: a few stages, each of which turns a state and the token just chosen into the next state.

Source:
    Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (arXiv 2404.19124),
    section 3.1. Weights and input scaling: as the published accelerators were trained, see formats/speculator.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.gelu import gelu
from mxconv.engine.readers.speculator_config import SpeculatorConfig
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, Weights
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm

EPS = 1e-6
PREFIX = "speculator."


@dataclass(frozen=True)
class Stage:
    """The weights of one head."""

    embedding: Matrix  # (vocab_size, inner_dim)
    projection: Matrix  # (inner_dim, emb_dim or inner_dim)
    scale: F32  # (inner_dim,)
    shift: F32
    head: Matrix  # (vocab_size, inner_dim)


class MlpSpeculator:
    """A draft that reads the target's last normed state.

    Args:
        config: sizes.
        weights: tensors by the names that the Hub's accelerators give them; of tied stages the first is enough.
        name: what messages call it.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: SpeculatorConfig, weights: Weights, name: str) -> None:
        self.config = config
        self.name = name
        self.reads = Reads(normed_last=True)
        self.stages = [_stage(config, CheckedWeights(weights, name), index) for index in range(config.n_predict)]
        state_weight = 0.5 ** (0.5 / config.n_predict)
        self._token_weight = np.float32(sqrt((1 - state_weight**2) * (config.inner_dim / 2)) / state_weight)

    @property
    def hidden_size(self) -> int:
        return self.config.emb_dim

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def least_layers(self) -> int:
        return self.config.least_layers

    @property
    def num_passes(self) -> int:
        """A stage is a pass, over weights of its own unless they are tied."""
        return 1 if self.config.tie_weights else len(self.stages)

    def begin(self, states: F32) -> F32:
        """The target's states as the first stage takes them, (n, emb_dim)."""
        if not self.config.scale_input:
            return states
        ones = np.ones(self.config.emb_dim, np.float32)
        return rms_norm(states, ones, EPS) / np.float32(sqrt(2))

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        """One stage: the states (n, inner_dim) behind tokens, from those that chose them."""
        stage = self.stages[index]
        mixed = stage.projection.multiply(states)
        mixed += self._token_weight * stage.embedding.rows(np.array(tokens, np.intp))
        return gelu(rms_norm(mixed, stage.scale, EPS) + stage.shift)

    def logits(self, index: int, states: F32) -> F32:
        """(n, vocab_size) float32: what a stage says behind its states."""
        return self.stages[index].head.multiply(states)


def _stage(config: SpeculatorConfig, weights: CheckedWeights, index: int) -> Stage:
    """Of tied weights the first one's; the first projection stands alone, since what it reads is of another length."""
    own = 0 if config.tie_weights else index
    projection = min(index, 1) if config.tie_weights else index
    inner, read = config.inner_dim, config.inner_dim if index else config.emb_dim
    return Stage(
        embedding=weights.matrix(f"{PREFIX}emb.{own}.weight", config.vocab_size, inner),
        projection=weights.matrix(f"{PREFIX}proj.{projection}.weight", inner, read),
        scale=weights.vector(f"{PREFIX}ln.{own}.weight", inner),
        shift=weights.vector(f"{PREFIX}ln.{own}.bias", inner),
        head=weights.matrix(f"{PREFIX}head.{own}.weight", config.vocab_size, inner),
    )
