"""Multi-level speculative decoding: target <- 4-bit draft <- small model, to any depth.

    hierarchy = Hierarchy(loaded.levels)
    generation = hierarchy.generate(tokenizer.encode("Once upon a time"), max_new_tokens=64)

Each level drafts for the one above. The target verifies every token it emits, so the output is what it would have
written alone: the same tokens from the same logits, bit for bit, because its rows do not depend on their batch.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mxconv.arrays import F32
from mxconv.errors import ModelError
from mxconv.model.cache import KVCache
from mxconv.model.loader import LoadedLevel
from mxconv.speculative.level import Level
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics, Trace

DEFAULT_NUM_DRAFT_TOKENS = 8
DEFAULT_CONFIDENCE = 0.4

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Generation:
    """What one prompt became."""

    token_ids: list[int]  # new ones, a final stop token included
    seconds: float
    trace: Trace

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0


class Hierarchy:
    """Levels chained by recursion: each is the draft of the one before it.

    Args:
        levels: the target first.
        num_draft_tokens: for each level below the target; None takes the manifest's.
        confidence: likewise.

    Raises:
        ModelError: no levels, or not one number a draft.
    """

    def __init__(
        self,
        levels: Sequence[LoadedLevel],
        num_draft_tokens: Sequence[int] | None = None,
        confidence: Sequence[float] | None = None,
    ) -> None:
        if not levels:
            raise ModelError("hierarchy: 0 levels; at least a target is required.")
        self.levels = list(levels)
        drafts = self.levels[1:]
        defaults = [level.record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS for level in drafts]
        thresholds = [
            DEFAULT_CONFIDENCE if level.record.confidence is None else level.record.confidence for level in drafts
        ]
        self.num_draft_tokens = _one_each("--num-draft-tokens", num_draft_tokens, defaults)
        self.confidence = _one_each("--confidence", confidence, thresholds)

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        on_logits: Callable[[int, F32], None] | None = None,
    ) -> Generation:
        """Decode greedily until `max_new_tokens`, a stop token, or the end of the target's positions.

        Args:
            prompt: token ids, at least one.
            max_new_tokens: at least one.
            stop_tokens: ids that end the text; the one that does is part of the result.
            on_logits: called with each new token's position in the result and the target's logits that chose it.

        Raises:
            ModelError: no prompt, or one longer than the target's positions.
        """
        self._check(len(prompt), max_new_tokens)
        target, statistics = self._chain()
        context = list(prompt)
        trace = Trace(statistics)
        begin = time.perf_counter()
        stopped = False
        max_length = min(len(prompt) + max_new_tokens, target.decoder.config.max_position_embeddings + 1)
        while not stopped and len(context) < max_length:
            trace.begin_round()
            # the prompt goes through the target alone: a shared cache must hold its own keys and values
            is_prompt = len(target.session.tokens) < len(context) - 1
            step = target.step(context, 1 if is_prompt else max_length - len(context))
            for token, logits in zip(step.tokens, step.logits, strict=True):
                if on_logits is not None:
                    on_logits(len(context) - len(prompt), logits)
                context.append(token)
                stopped = token in stop_tokens
                if stopped:
                    break
            trace.end_round()
        return Generation(context[len(prompt) :], time.perf_counter() - begin, trace)

    def _check(self, num_tokens: int, max_new_tokens: int) -> None:
        if num_tokens == 0:
            raise ModelError("prompt: 0 tokens; at least one is required. Give a text.")
        limit = self.levels[0].decoder.config.max_position_embeddings
        if num_tokens > limit:
            raise ModelError(
                f"prompt: {num_tokens} tokens; the target has {limit} positions (max_position_embeddings). Shorten it."
            )
        if max_new_tokens < 1:
            raise ModelError(f"max_new_tokens: {max_new_tokens}; at least 1 is required.")

    def _chain(self) -> tuple[Level, list[LevelStatistics]]:
        """Fresh caches, and the levels linked from the innermost out."""
        sessions: list[Session] = []
        for level in self.levels:
            shared = bool(sessions) and level.shares_cache
            sessions.append(sessions[0] if shared else Session(KVCache(level.decoder.config)))
        statistics = [LevelStatistics(level.name) for level in self.levels]
        asked = [*self.num_draft_tokens, DEFAULT_NUM_DRAFT_TOKENS]  # the innermost level asks nobody
        chain: Level | None = None
        for index in reversed(range(len(self.levels))):
            chain = Level(
                decoder=self.levels[index].decoder,
                session=sessions[index],
                shares_session=index > 0 and sessions[index] is sessions[0],
                num_draft_tokens=asked[index],
                confidence=self.confidence[index - 1] if index else 0.0,
                statistics=statistics[index],
                draft=chain,
            )
        assert chain is not None
        return chain, statistics


def _one_each(flag: str, given: Sequence[Number] | None, defaults: list[Number]) -> list[Number]:
    """Numbers for every draft level: one for all, or one each."""
    if given is None:
        return defaults
    if len(given) == 1:
        return list(given) * len(defaults)
    if len(given) != len(defaults):
        raise ModelError(
            f"{flag}: {len(given)} numbers for {len(defaults)} draft levels; one for all, or one each, is required."
        )
    return list(given)
