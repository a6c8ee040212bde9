"""DSpark's two small heads: one biases each token of a block by the token before it, one tells how far to trust it.

Source:
    DSpark, arXiv 2607.05147; MarkovHead and ConfidenceHead of vllm-project/speculators 0.9.
"""

from collections.abc import Sequence

import numpy as np

from mxconv.arch.elements import Linear
from mxconv.arrays import F32
from mxconv.drafts.readers.dflash_config import DflashConfig
from mxconv.engine.activations import row_sigmoid
from mxconv.engine.weights import CheckedWeights, Projection

MARKOV = "markov_head"


class MarkovHead:
    """Logits of low rank that are added to a row's, from the token before the one that it chooses.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: DflashConfig, weights: CheckedWeights) -> None:
        rank, size = config.markov_rank, config.layer.hidden_size
        self.rank = rank
        self.embedding = weights.matrix(f"{MARKOV}.markov_w1.weight", config.vocab_size, rank)
        self.output = weights.matrix(f"{MARKOV}.markov_w2.weight", config.draft_vocab_size, rank)
        self.gate: Projection | None = None
        self.joint: Projection | None = None
        if config.markov_type == "gated":
            self.gate = weights.projection(Linear(f"{MARKOV}.gate_proj", has_bias=True), rank, size + rank)
        elif config.markov_type == "rnn":
            self.joint = weights.projection(Linear(f"{MARKOV}.joint_proj", has_bias=True), 3 * rank, 2 * rank + size)

    def embedded(self, tokens: Sequence[int]) -> F32:
        """(n, rank) float32: what it knows of some tokens."""
        return self.embedding.rows(np.array(tokens, np.intp))

    def step(self, embedded: F32, hidden: F32, memory: F32) -> tuple[F32, F32]:
        """What the logits of rows are made of, and the memory of the rows after them, (n, rank) each.

        Args:
            embedded: (n, rank), of the tokens before.
            hidden: (n, hidden_size), the rows' normed states.
            memory: (n, rank), of the rows before, zeros before a block's first; a recurrent head alone has one.
        """
        if self.gate is not None:
            return row_sigmoid(self.gate(np.concatenate([hidden, embedded], axis=1))) * embedded, memory
        if self.joint is None:
            return embedded, memory
        gate, candidate, made = np.split(self.joint(np.concatenate([memory, embedded, hidden], axis=1)), 3, axis=1)
        kept = row_sigmoid(gate)
        memory = kept * memory + (1 - kept) * np.tanh(candidate)
        return np.tanh(made), memory


class ConfidenceHead:
    """The chance that a row's token is accepted, if those before it are.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: DflashConfig, weights: CheckedWeights) -> None:
        self._with_token = config.confidence == "state and token"
        taken = config.layer.hidden_size + (config.markov_rank if self._with_token else 0)
        self.projection = weights.projection(Linear("confidence_head.proj", has_bias=True), 1, taken)

    def chances(self, hidden: F32, embedded: F32 | None) -> F32:
        """(n,) float32, from rows' states and what the Markov head knows of the tokens before."""
        taken = np.concatenate([hidden, embedded], axis=1) if self._with_token and embedded is not None else hidden
        return row_sigmoid(self.projection(taken)[:, 0])
