"""The MLP speculator: a few stages, each of which turns a state and the token just chosen into the next state.

Source:
    Wertheimer et al., "Accelerating Production LLMs with Combined Token/Embedding Speculators" (arXiv 2404.19124),
    section 3.1. Weights and input scaling: as the published accelerators were trained, see formats/speculator.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Self

import numpy as np

from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.engine.activations import exact_gelu
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm
from mxconv.speculation.reader import MOST_STAGES, ReaderSizes, StagedReader

MOST_CANDIDATES = 64


@dataclass(frozen=True)
class SpeculatorConfig(ReaderConfig):
    """An MLP speculator.

    Args:
        vocab_size: tokens that every stage chooses from.
        emb_dim: hidden size of the target whose last normed state it reads.
        inner_dim: length of its own states.
        n_predict: stages, a token each.
        top_k_tokens_per_head: how many tokens each stage proposes after each of the one before, in its candidate tree.
        n_candidates: paths of that tree that are kept.
        tie_weights: whether all stages have one embedding, one norm and one head, and all but the first one projection.
        scale_input: whether the target's state is normed and divided by the square root of 2 first.
    """

    vocab_size: int
    emb_dim: int
    inner_dim: int
    n_predict: int
    top_k_tokens_per_head: tuple[int, ...]
    n_candidates: int
    tie_weights: bool
    scale_input: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.choice("model_type", ("mlp_speculator",))
        emb_dim, n_predict = fields.size("emb_dim"), fields.size("n_predict")
        if n_predict > MOST_STAGES:
            fields.reject("n_predict", f"at most {MOST_STAGES} stages are supported")
        return cls(
            vocab_size=fields.size("vocab_size"),
            emb_dim=emb_dim,
            # 0 stands for emb_dim
            inner_dim=emb_dim if fields.values.get("inner_dim") == 0 else fields.size("inner_dim", emb_dim),
            n_predict=n_predict,
            top_k_tokens_per_head=_top_k(fields, n_predict),
            n_candidates=min(fields.size("n_candidates", 5), MOST_CANDIDATES),
            tie_weights=fields.flag("tie_weights", False),
            scale_input=fields.flag("scale_input", False),
        )

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.emb_dim, self.vocab_size, most_tokens=self.n_predict)

    def to_dict(self) -> dict[str, object]:
        """What config.json holds."""
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            **{key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()},
        }


def _top_k(fields: Fields, n_predict: int) -> tuple[int, ...]:
    """A number a stage; without the key 5, 4, 3 and then 2."""
    counts = fields.values.get("top_k_tokens_per_head")
    if counts is None:
        return tuple(max(5 - stage, 2) for stage in range(n_predict))
    if (
        not isinstance(counts, list)
        or len(counts) != n_predict
        or not all(type(count) is int and 1 <= count <= MOST_CANDIDATES for count in counts)
    ):
        fields.reject(
            "top_k_tokens_per_head",
            f"a list of n_predict, {n_predict}, numbers from 1 to {MOST_CANDIDATES} is required",
        )
    return tuple(counts)


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


class MlpSpeculator(StagedReader):
    """A draft that reads the target's last normed state.

    Args:
        weights: tensors by the names that the Hub's accelerators give them; of tied stages the first is enough.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: SpeculatorConfig, weights: ModelWeights, name: str) -> None:
        super().__init__(config.sizes, Reads(normed_last=True), name)
        self.config = config
        self.stages = [_stage(config, CheckedWeights(weights, name), index) for index in range(config.n_predict)]
        self.num_stages = config.n_predict
        state_weight = 0.5 ** (0.5 / config.n_predict)
        self._token_weight = np.float32(sqrt((1 - state_weight**2) * (config.inner_dim / 2)) / state_weight)

    def begin(self, states: F32) -> F32:
        if not self.config.scale_input:
            return states
        ones = np.ones(self.config.emb_dim, np.float32)
        return rms_norm(states, ones, EPS) / np.float32(sqrt(2))

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        stage = self.stages[index]
        mixed = stage.projection.multiply(states)
        mixed += self._token_weight * stage.embedding.rows(np.array(tokens, np.intp))
        return exact_gelu(rms_norm(mixed, stage.scale, EPS) + stage.shift)

    def logits(self, index: int, states: F32) -> F32:
        return self.stages[index].head.multiply(states)


def _stage(config: SpeculatorConfig, weights: CheckedWeights, index: int) -> Stage:
    """The weights of a stage; tied ones are the first stage's, but its projection, whose input has another length."""
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
