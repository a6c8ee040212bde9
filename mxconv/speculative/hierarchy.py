"""Multi-level speculative decoding: target <- 4-bit draft <- small model <- look-up, to any depth.

    hierarchy = Hierarchy(loaded.levels)
    generation = hierarchy.generate(tokenizer.encode("Once upon a time"), max_new_tokens=64)

Each level drafts for the one above. The target verifies every token it emits, so the output is what it would have
written alone: the same tokens from the same logits, bit for bit, because its rows do not depend on their batch.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from mxconv.arrays import F32
from mxconv.checkpoint.draft_spec import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS
from mxconv.errors import ModelError
from mxconv.model.loader import LoadedLevel
from mxconv.speculative.chain import Chain, growers, num_models
from mxconv.speculative.level import Step
from mxconv.speculative.pacing.adaptive_pace import paces
from mxconv.speculative.pacing.row_growth import growth_of
from mxconv.speculative.selection import GREEDY, Selection
from mxconv.speculative.statistics import LevelStatistics, Trace

Number = TypeVar("Number", int, float)
Ending = Literal["length", "stop", "interrupted"]


@dataclass
class Generation:
    """What one prompt became; it grows while it is decoded."""

    trace: Trace
    token_ids: list[int] = field(default_factory=list)  # new ones, a final stop token included
    seconds: float = 0.0
    prompt_seconds: float = 0.0  # of these, until the first token
    ending: Ending = "interrupted"

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0


class Hierarchy:
    """Levels chained by recursion: each is the draft of the one before it.

    Look-ups, which nothing can draft for, come last; several of them are one draft, see `Merged`.

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
        drafts = self.levels[1:]
        defaults = [level.record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS for level in drafts]
        thresholds = [
            DEFAULT_CONFIDENCE if level.record.confidence is None else level.record.confidence for level in drafts
        ]
        self.adaptive = num_draft_tokens == "auto"
        given = None if num_draft_tokens == "auto" else num_draft_tokens
        self.num_draft_tokens = _one_each("--num-draft-tokens", given, defaults)
        self.confidence = _one_each("--confidence", confidence, thresholds)
        num_nodes = {"auto": None, "chain": 0}[tree] if isinstance(tree, str) else tree
        num_choices = min(num_models(self.levels), len(drafts))  # look-ups at the end are one: the first one's length
        of_each = [growers(self.levels, index) for index in range(num_choices)]
        lengths = self.num_draft_tokens[:num_choices]
        growths = [growth_of(level.decoder) for level in self.levels[:num_choices]]
        self.paces = paces(self.adaptive, lengths, confidence is None, of_each, num_nodes, growths)
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
            ModelError: no prompt, or one longer than the target's positions; at once, not when iterated.
        """
        self._check(len(prompt), max_new_tokens)
        return self._rounds(prompt, max_new_tokens, stop_tokens, selection, generation)

    def _rounds(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Collection[int],
        selection: Selection,
        generation: Generation,
    ) -> Iterator[tuple[int, F32]]:
        trace = generation.trace
        target = self._chain.link(trace.statistics, selection.acceptance())
        context = list(prompt)
        max_length = min(len(prompt) + max_new_tokens, target.decoder.config.max_position_embeddings + 1)
        while len(context) < max_length:
            begin = time.perf_counter()
            trace.begin_round()
            # the prompt goes through the target alone: a shared cache must hold its own keys and values
            is_prompt = len(target.session.tokens) < len(context) - 1
            step = target.step(context, 1 if is_prompt else max_length - len(context))
            trace.end_round()
            generation.seconds += time.perf_counter() - begin
            if not generation.token_ids:
                generation.prompt_seconds = generation.seconds
            for token, logits in _until(stop_tokens, step):
                context.append(token)
                generation.token_ids.append(token)
                yield token, logits
            if context[-1] in stop_tokens:
                generation.ending = "stop"
                return
        generation.ending = "length"

    def _check(self, num_tokens: int, max_new_tokens: int) -> None:
        if num_tokens == 0:
            raise ModelError("prompt: 0 tokens; at least one is required. Give a text.")
        target = self.levels[0].decoder
        assert target is not None
        limit = target.config.max_position_embeddings
        if num_tokens > limit:
            raise ModelError(
                f"prompt: {num_tokens} tokens; the target has {limit} positions (max_position_embeddings). Shorten it."
            )
        if max_new_tokens < 1:
            raise ModelError(f"max_new_tokens: {max_new_tokens}; at least 1 is required.")


def _until(stop_tokens: Collection[int], step: Step) -> Iterator[tuple[int, F32]]:
    """A round's tokens with their logits, up to and with the first that ends the text."""
    for token, logits in zip(step.tokens, step.logits, strict=True):
        yield token, logits
        if token in stop_tokens:
            return


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
