"""A P-EAGLE draft head, in the format of the `speculators` package: `p-eagle:PATH_OR_ID`.

An EAGLE-3 head that was trained to draft without its own features: pairs to come have a mask for a token and a learned
state for the target's, so that one pass over them proposes all tokens at once.

Source:
    "P-EAGLE: Parallel-Drafting EAGLE with Scalable Training" (arXiv 2602.01469); PEagleDraftModel of
    vllm-project/speculators 0.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mxconv.arch.fields import Fields
from mxconv.arrays import F32, I64
from mxconv.drafts.eagle3 import Eagle3, Eagle3Kind
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.feature_draft import MOST_TOKENS, FeatureDraft
from mxconv.engine.matrices import Matrices
from mxconv.engine.tree import Tree
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.package.level_record import LevelRecord
from mxconv.speculation.loaded_level import Listener
from mxconv.speculation.reader import ReaderSizes

MASK = "mask_hidden"


@dataclass(frozen=True)
class PEagleConfig(Eagle3Config):
    """A P-EAGLE head.

    Args:
        mask_token_id: what stands for tokens to come.
        num_tokens: that it was trained to propose, `speculative_tokens` of its first proposal method.
    """

    model_type = "peagle"

    mask_token_id: int
    num_tokens: int

    @classmethod
    def members(cls, fields: Fields) -> dict[str, Any]:
        found = super().members(fields)
        methods, token = (
            fields.section("speculators_config").values.get("proposal_methods"),
            fields.values.get("mask_token_id"),
        )
        if type(token) is not int or not 0 <= token < found["layer"].vocab_size:
            fields.reject("mask_token_id", f"a token from 0 to {found['layer'].vocab_size - 1} is required")
        method = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
        count = Fields(method, f"{fields.name}: proposal_methods").size("speculative_tokens", 8)
        return found | {"mask_token_id": token, "num_tokens": min(count, MOST_TOKENS)}

    @property
    def sizes(self) -> ReaderSizes:
        return replace(super().sizes, most_tokens=self.num_tokens)


class PEagle(Eagle3):
    """The head, with the feature of tokens that the target has not evaluated.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    config: PEagleConfig

    def __init__(
        self, config: PEagleConfig, weights: ModelWeights, tokens: I64, layers: Sequence[int], name: str
    ) -> None:
        super().__init__(config, weights, tokens, layers, name)
        shape = (1, 1, len(layers) * config.target_hidden_size)
        states = CheckedWeights(weights, name).array(MASK, shape)
        self.masked = self.fused(np.split(states[0], len(layers), axis=1))  # (1, hidden_size)


class PEagleDraft(FeatureDraft):
    """Proposes by one pass, which evaluates what was accepted since too; the nodes of a depth have the same logits."""

    _head: PEagle

    def __init__(self, head: PEagle, listener: Listener) -> None:
        super().__init__(head, listener)
        self._rows: F32 = np.empty((0, 0), np.float32)  # of the logits, a row a depth

    def begin(self, context: Sequence[int]) -> F32:
        head, num_masks = self._head, self.num_wanted - 1

        def evaluate(features: F32, tokens: Sequence[int]) -> F32:
            taken = np.concatenate([features, np.repeat(head.masked, num_masks, axis=0)])
            made = head.advance(taken, [*tokens, *[head.config.mask_token_id] * num_masks], self._cache)
            return self._logits(made[len(tokens) - 1 :])

        with self.statistics.forward():
            self._rows = self._read(context, evaluate)
        self._cache.truncate(len(context) - 1)
        return self._rows[:1]

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        return np.repeat(self._rows[tree.depths[tree.num_cached] + 1][None], len(tokens), axis=0)


class PEagleKind(Eagle3Kind):
    """A head whose trees need no pass a depth."""

    name = "p-eagle"
    drafts_at_once = True
    config = PEagleConfig

    def made(
        self, config: Any, weights: ModelWeights, tokens: I64, layers: Sequence[int], name: str, make: Matrices
    ) -> PEagle:
        return PEagle(config, weights, tokens, layers, name)

    def draft(self, reader: Any, record: LevelRecord, listener: Listener) -> PEagleDraft:
        return PEagleDraft(reader, listener)


P_EAGLE = PEagleKind()
