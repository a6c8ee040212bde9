"""Multi-level speculative decoding: target <- 4-bit draft <- small model <- look-up, to any depth.

    hierarchy = Hierarchy(loaded.levels)
    generation = hierarchy.generate(tokenizer.encode("Once upon a time"), max_new_tokens=64)

Each level drafts for the one above. The target verifies every token it emits, so the output is what it would have
written alone: the same tokens from the same logits, bit for bit, because its rows do not depend on their batch.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, TypeVar

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.adaptive_pace import MOST_NODES, AdaptivePace
from mxconv.speculation.chain import Chain, at_once, growers, num_models, reads
from mxconv.speculation.loaded_level import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS, LoadedLevel
from mxconv.speculation.pace import FixedPace, Pace
from mxconv.speculation.passes import AT_ONCE, Passes
from mxconv.speculation.round import Decoding
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.statistics import Generation, LevelStatistics, Trace

Number = TypeVar("Number", int, float)


class Hierarchy:
    """Levels chained by recursion: each is the draft of the one before it.

    Look-ups, which nothing can draft for, come last; of several, those that pay are asked.

    What adaptive levels learn, and tables that drafts fill while decoding, stay from one prompt to the next.

    Args:
        levels: the target first.
        num_draft_tokens: for each level below the target; None takes the manifest's, "auto" lets every level choose
            in each round how many tokens of which cheaper level pay.
        confidence: for each level below the target; None takes the manifest's, or leaves models to "auto" as well.
        tree: drafts propose trees of at most so many nodes; "chain" is none of them, "auto" leaves their size to
            "auto" and is "chain" with lengths that are given.

    Raises:
        ModelError: no levels, or not one number a draft.
    """

    def __init__(
        self,
        levels: Sequence[LoadedLevel],
        num_draft_tokens: Sequence[int] | Literal["auto"] | None = None,
        confidence: Sequence[float] | None = None,
        tree: int | Literal["auto", "chain"] = "auto",
    ) -> None:
        if not levels:
            raise ModelError("hierarchy: 0 levels; at least a target is required.")
        self.levels = list(levels)
        records = [level.record for level in self.levels[1:]]
        lengths = [record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS for record in records]
        thresholds = [DEFAULT_CONFIDENCE if record.confidence is None else record.confidence for record in records]
        self.adaptive = num_draft_tokens == "auto"
        given = None if num_draft_tokens == "auto" else num_draft_tokens
        self.num_draft_tokens = _one_each("--num-draft-tokens", given, lengths)
        self.confidence = _one_each("--confidence", confidence, thresholds)
        num_nodes = {"auto": None, "chain": 0}[tree] if isinstance(tree, str) else tree
        num_consumers = min(num_models(self.levels), len(records))
        self.paces: list[Pace] = [
            AdaptivePace(
                len(records) - index,
                sets_floors=confidence is None,
                growers=growers(self.levels, index),
                reads=reads(self.levels, index),
                most_nodes=MOST_NODES if num_nodes is None else num_nodes,
                at_once=at_once(self.levels, index),
            )
            if self.adaptive
            else FixedPace(self.num_draft_tokens[index], num_nodes or 0)
            for index in range(num_consumers)
        ]
        self._chain = Chain(self.levels, self.paces, self.confidence)

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Collection[int] = (),
        on_logits: Callable[[int, F32], None] | None = None,
        selection: Selection = GREEDY,
    ) -> Generation:
        """Decode until `max_new_tokens`, a stop token, or the end of the target's positions.

        Args:
            prompt: token ids, at least one.
            max_new_tokens: at least one.
            stop_tokens: ids that end the text; the one that does is part of the result.
            on_logits: called with each new token's position in the result and the target's logits that chose it.
            selection: how tokens are chosen.

        Raises:
            ModelError: no prompt, or one longer than the target's positions.
        """
        generation = self.begin()
        for index, (_, logits) in enumerate(self.stream(prompt, max_new_tokens, stop_tokens, selection, generation)):
            if on_logits is not None:
                on_logits(index, logits)
        return generation

    def begin(self) -> Generation:
        """An empty generation, for `stream` to fill."""
        return Generation(Trace([LevelStatistics(level.name) for level in self.levels]))

    def stream(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Collection[int],
        selection: Selection,
        generation: Generation,
    ) -> Iterator[tuple[int, F32]]:
        """Tokens as they are decided, each with the target's logits that chose it; `generation` grows alongside.

        A consumer may stop asking at any token, and an interrupt may come at any moment: what `generation` holds then
        is whole, its ending "interrupted".

        Raises:
            ModelError: no prompt, one longer than the target's positions, or a bias on a token that the target does
                not have; at once, not when iterated.
        """
        self.check(len(prompt), max_new_tokens)
        selection.penalties.check(self.vocab_size)
        rule = selection.acceptance(len(prompt))
        decoding = self.decoding(prompt, len(prompt) + max_new_tokens, stop_tokens, rule, generation)
        return _tokens(decoding, generation)

    def decoding(
        self,
        context: Sequence[int],
        max_length: int,
        stop_tokens: Collection[int],
        acceptance: Acceptance,
        generation: Generation,
        passes: Passes = AT_ONCE,
        uses_drafts: bool = True,
    ) -> Decoding:
        """A text for a caller who asks for its rounds and keeps its tokens; any number may be under way.

        It continues `context`, all tokens so far, and fills the trace of `generation`; `passes` evaluate its rows.
        Without drafts the target decodes alone.
        """
        target = self._chain.link(generation.trace.statistics, acceptance, passes, uses_drafts)
        return Decoding(target, context, max_length, stop_tokens, generation.trace)

    @property
    def target(self) -> Decoder:
        """The first level's model."""
        assert self.levels[0].decoder is not None
        return self.levels[0].decoder

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.target.config.vocab_size

    def cached_decoders(self) -> list[Decoder]:
        """The models that have caches of their own: the target, and each that shares no other's."""
        own = [level for index, level in enumerate(self.levels) if not (index and level.shares_cache)]
        return [level.decoder for level in own if level.decoder is not None]

    def reader_caches(self) -> list[KVCache]:
        """Empty caches as every text has them of drafts that read hidden states, but for those of a constant size."""
        return [
            cache
            for level in self.levels
            if level.reader is not None and (cache := level.reader.text_cache()) is not None
        ]

    def check(self, num_tokens: int, max_new_tokens: int) -> None:
        """Raises ModelError for a prompt of no tokens, or of more than the target's positions, or for no new ones."""
        if num_tokens == 0:
            raise ModelError("prompt: 0 tokens; at least one is required. Give a text.")
        limit = self.target.config.max_position_embeddings
        if num_tokens > limit:
            raise ModelError(
                f"prompt: {num_tokens} tokens; the target has {limit} positions (max_position_embeddings). Shorten it."
            )
        if max_new_tokens < 1:
            raise ModelError(f"max_new_tokens: {max_new_tokens}; at least 1 is required.")


def _tokens(decoding: Decoding, generation: Generation) -> Iterator[tuple[int, F32]]:
    while decoding.ending is None:
        begin = time.perf_counter()
        step = decoding.round()
        generation.seconds += time.perf_counter() - begin
        if not generation.token_ids:
            generation.prompt_seconds = generation.seconds
        for token, logits in zip(step.tokens, step.logits, strict=True):
            generation.token_ids.append(token)
            yield token, logits
    generation.ending = decoding.ending


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
