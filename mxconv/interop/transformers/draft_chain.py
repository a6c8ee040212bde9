"""The draft levels of a package with a torch model as the target: each drafts for the level above it.

Only this file couples transformers to `mxconv.speculation`. The package's own target remains at the head of the chain,
since drafts may be parts of it, but it never runs.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal, Protocol

import torch

from mxconv.drafts.acceptance import GreedyAcceptance
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.interop.transformers.torch_target import TorchTarget
from mxconv.speculation.chain import Chain
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.pace import Choice, Outcome


class Proposer(Protocol):
    """Drafts for one growing text, on whatever device; `statistics` has the counts of each."""

    statistics: list[LevelStatistics]

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """Propose at most `max_tokens` tokens that may follow."""
        ...

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """Tell the drafts how the target verified the last proposal; see `DraftChain.learn`."""
        ...


class DraftLevels:
    """The drafts of a package, for one text after another; what they learn outlasts each text.

    `levels` begins with the package's target; the other arguments are `Hierarchy`'s. `tree` is for what drafts propose
    to drafts: torch gets chains, since it evaluates no trees.

    Raises:
        ModelError: not one number a draft.
    """

    def __init__(
        self,
        levels: Sequence[LoadedLevel],
        num_draft_tokens: Sequence[int] | Literal["auto"] | None = None,
        confidence: Sequence[float] | None = None,
        tree: int | Literal["auto", "chain"] = "auto",
    ) -> None:
        self._levels = [levels[0], *map(_with_a_cache_of_its_own, levels[1:])]
        settled = Hierarchy(self._levels, num_draft_tokens, confidence, tree)
        of_torch, *_ = Hierarchy(self._levels, num_draft_tokens, confidence, "chain").paces
        self._chain = Chain(self._levels, [of_torch, *settled.paces[1:]], settled.confidence)

    @contextlib.contextmanager
    def begin(self, target: TorchTarget) -> Iterator["DraftChain"]:
        """Start drafts with fresh caches for one text; they do not read the target's states."""
        yield DraftChain(self._chain, [LevelStatistics(level.name) for level in self._levels])


class DraftChain:
    """Drafts for one growing text; `statistics` has the counts of each."""

    def __init__(self, chain: Chain, statistics: list[LevelStatistics]) -> None:
        # drafts propose their most likely tokens, also where the target samples
        self._target = chain.link(statistics, GreedyAcceptance())
        self.statistics = statistics[1:]
        self._choice, self._begin, self._end = Choice(0, 0), 0.0, 0.0
        self._probabilities: list[float] = []

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """At most `max_tokens` tokens that may follow; fewer, or none, where confidence is low."""
        target = self._target
        self._begin = time.perf_counter()
        self._choice = target.pace.choose(max_tokens) if max_tokens > 0 else Choice(0, 0)
        tokens: list[int] = []
        self._probabilities = []
        if self._choice.num_tokens:
            proposal = target.drafts[self._choice.draft].propose(context, self._choice.num_tokens, self._choice.floor)
            wanted = proposal.tokens[: self._choice.num_tokens]
            tokens = list(takewhile(lambda token: 0 <= token < target.vocab_size, wanted))
            self._probabilities = proposal.probabilities[: len(tokens)]
        self._end = time.perf_counter()
        return tokens

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """Tell the drafts how the target verified the last proposal.

        Args:
            context: all tokens before the proposed ones, at least one.
            proposed: tokens that the target evaluated after them.
            num_accepted: number of accepted ones.
            logits: (len(proposed) + 1, vocab_size) float32, the target's.
        """
        target, choice, num_proposed = self._target, self._choice, len(proposed)
        if choice.num_tokens:
            target.drafts[choice.draft].statistics.count(choice.num_tokens, num_proposed, num_accepted)
        if self._end:  # a pace learns from plain rounds too, but not from the prompt, which nothing was proposed for
            seconds = self._end - self._begin, time.perf_counter() - self._end
            outcome = Outcome(num_proposed, num_accepted, num_proposed + 1, *seconds, self._probabilities)
            target.pace.learn(choice, outcome)
        seen = logits.cpu().numpy()[:, : target.vocab_size]
        for draft in target.drafts:
            draft.observe(context, Proposal(list(proposed)), seen)


def _with_a_cache_of_its_own(level: LoadedLevel) -> LoadedLevel:
    """The level without a share in the target's KV cache, which is torch's."""
    shares = [part for part in level.record.shares if part != "kv_cache"]
    return replace(level, record=level.record.model_copy(update={"shares": shares}))
