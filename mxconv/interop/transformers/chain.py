"""The draft levels of a package without its target: each drafts for the one above, the first for somebody else's model.

This file is all that couples transformers to `mxconv.speculative`.
"""

from collections.abc import Sequence

from mxconv.model.cache import KVCache
from mxconv.model.loader import LoadedLevel
from mxconv.speculative.hierarchy import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS
from mxconv.speculative.level import Level
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics


class DraftChain:
    """Drafts with caches of their own, for one text that grows.

    Args:
        levels: the drafts, the target's own first; at least one.
    """

    def __init__(self, levels: Sequence[LoadedLevel]) -> None:
        self.statistics = [LevelStatistics(level.name) for level in levels]
        chain: Level | None = None
        asked = DEFAULT_NUM_DRAFT_TOKENS  # the innermost level asks nobody
        for level, statistics in zip(reversed(levels), reversed(self.statistics), strict=True):
            confidence = level.record.confidence
            chain = Level(
                decoder=level.decoder,
                session=Session(KVCache(level.decoder.config)),
                shares_session=False,
                num_draft_tokens=asked,
                confidence=DEFAULT_CONFIDENCE if confidence is None else confidence,
                statistics=statistics,
                draft=chain,
            )
            asked = level.record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS
        assert chain is not None
        self._first = chain
        self.num_draft_tokens = asked

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens that may follow; fewer, or none, where confidence is low."""
        wanted = min(self.num_draft_tokens, max_tokens)
        return self._first.propose(context, wanted)[:wanted] if wanted > 0 else []

    def accept(self, num_tokens: int) -> None:
        """The target took this many of what was proposed last."""
        self.statistics[0].num_accepted += num_tokens
