"""The loop of `generate` with proposed tokens, and a record of its run: choices, rounds, counts of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mxconv.interop.transformers.torch_target import TorchTarget, cache_name
from mxconv.speculation.statistics import LevelStatistics

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers.generation import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer


@dataclass(frozen=True)
class GreedyChoice:
    """A greedy choice: the best token and the next best, by the scores after all logits processors."""

    index: int  # among the new tokens
    token: int
    runner_up: int
    margin: float  # score of the best minus score of the next best


@dataclass(frozen=True)
class TokenChange:
    """The first token that depends on how many tokens torch evaluates at once."""

    with_drafts: GreedyChoice
    without_drafts: GreedyChoice

    def __str__(self) -> str:
        found, plain = self.with_drafts, self.without_drafts
        return (
            f"new token {found.index} is {found.token} with drafts (margin {found.margin:.3g} over {found.runner_up}) "
            f"and {plain.token} without (margin {plain.margin:.3g} over {plain.runner_up}): this torch model rounds "
            "differently when it evaluates several tokens at once"
        )


@dataclass(frozen=True)
class GenerateRun:
    """A record of one call of `generate`.

    Args:
        choices: every new token in order; empty where tokens were drawn at random.
        num_tokens: new ones.
        num_rounds: forward passes of the target.
        levels: counts of each draft.
        difference: with `check`, the first token that plain decoding chooses otherwise.
    """

    choices: list[GreedyChoice]
    num_tokens: int
    num_rounds: int
    levels: list[LevelStatistics]
    difference: TokenChange | None = None

    @property
    def closest(self) -> GreedyChoice | None:
        """The choice that rounding could change most easily."""
        return min(self.choices, key=lambda choice: choice.margin, default=None)


def greedy_choice(index: int, scores: torch.Tensor) -> GreedyChoice:
    """The greedy choice by (vocab_size,) scores; among equals the first token, as `generate` takes it."""
    values, tokens = scores.topk(min(2, len(scores)))
    token = int(scores.argmax())
    runner_up = next((int(other) for other in tokens if int(other) != token), token)
    return GreedyChoice(index, token, runner_up, float(values[0] - values[-1]))


def first_difference(with_drafts: list[GreedyChoice], without_drafts: list[GreedyChoice]) -> TokenChange | None:
    """The first index at which two runs chose different tokens."""
    for found, plain in zip(with_drafts, without_drafts, strict=False):
        if found.token != plain.token:
            return TokenChange(found, plain)
    return None


class Proposer(Protocol):
    """Drafts for one growing text, on whatever device; `statistics` has the counts of each."""

    statistics: list[LevelStatistics]

    def propose(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """Propose at most `max_tokens` tokens that may follow."""
        ...

    def learn(self, context: Sequence[int], proposed: Sequence[int], num_accepted: int, logits: torch.Tensor) -> None:
        """Tell the drafts how the target verified the last proposal; `logits` is (len(proposed) + 1, vocab_size)."""
        ...


class GenerateLoop:
    """The loop of `generate` over one text, whoever proposes its tokens; keeps a record of choices and scores."""

    def __init__(
        self,
        target: TorchTarget,
        logits_processor: "LogitsProcessorList",
        stopping_criteria: "StoppingCriteriaList",
        config: "GenerationConfig",
        input_ids: torch.Tensor,
    ) -> None:
        self.target = target
        self.sequence = input_ids
        self.context = target.visible()
        self.choices: list[GreedyChoice] = []
        self.num_rounds = 0
        self._streamer: BaseStreamer | None = None
        self._processor, self._criteria, self._config = logits_processor, stopping_criteria, config
        self._scores: tuple[torch.Tensor, ...] = ()
        self._logits: tuple[torch.Tensor, ...] = ()

    def stream_to(self, theirs: "BaseStreamer | None", own: "BaseStreamer | None") -> None:
        """Stream tokens to transformers' streamer, which has the prompt already, or else to our caller's."""
        self._streamer = theirs or own
        if theirs is None and own is not None:  # transformers passes none to a callable
            own.put(self.sequence.cpu())

    def run(self, chain: Proposer | None) -> None:
        """Decode until a stopping criterion ends the text; without a chain, one token a round."""
        while not self._grow(chain):
            pass
        if self._streamer is not None:
            self._streamer.end()

    def output(self) -> Any:
        """The result of `generate`."""
        if not self._config.return_dict_in_generate:
            return self.sequence
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(
            sequences=self.sequence,
            scores=self._scores if self._config.output_scores else None,
            logits=self._logits if self._config.output_logits else None,
            **{cache_name(): self.target.cache},
        )

    def _grow(self, chain: Proposer | None) -> bool:
        """Propose, evaluate and accept tokens once; returns whether to stop."""
        proposed: list[int] = []
        # the prompt goes through alone, as in plain decoding: its first token is then the same, bit for bit
        if chain is not None and self.num_rounds:
            proposed = chain.propose(self.context, self._config.max_length - self.sequence.shape[1] - 1)
        length, context = self.sequence.shape[1], list(self.context)
        logits, stopped = self._round(proposed)
        new = self.context[length - self.sequence.shape[1] :]
        if chain is not None:
            num_accepted = sum(token == guess for token, guess in zip(new, proposed, strict=False))
            chain.learn(context, proposed, num_accepted, logits)
        self.target.rewind(self.sequence.shape[1] - 1)
        return stopped

    def _round(self, proposed: list[int]) -> tuple[torch.Tensor, bool]:
        """Evaluate the proposed tokens; append those that agree and one more.

        Returns:
            (len(proposed) + 1, vocab_size) logits, and whether to stop.
        """
        self.num_rounds += 1
        candidates = torch.tensor([proposed], dtype=self.sequence.dtype, device=self.sequence.device)
        logits = self.target.evaluate(torch.cat((self.sequence, candidates), dim=-1), len(proposed) + 1)
        stopped = False
        for row, guess in zip(logits, [*proposed, None], strict=True):
            token, stopped = self._append(row[None])
            if stopped or token != guess:
                break
        return logits, stopped

    def _append(self, logits: torch.Tensor) -> tuple[int, bool]:
        """Choose a token from (1, vocab_size) logits as `generate` does; returns it, and whether to stop."""
        scores = self._processor(self.sequence, logits.clone())
        if self._config.do_sample:
            chosen = torch.multinomial(scores.softmax(dim=-1), num_samples=1)
        else:
            chosen = scores.argmax(dim=-1, keepdim=True)
            self.choices.append(greedy_choice(len(self.choices), scores[0]))
        if self._config.return_dict_in_generate:
            self._scores += (scores,) if self._config.output_scores else ()
            self._logits += (logits,) if self._config.output_logits else ()
        token = int(chosen)
        self.sequence = torch.cat((self.sequence, chosen.to(self.sequence.dtype)), dim=-1)
        self.context.append(token)
        if self._streamer is not None:
            self._streamer.put(chosen[0].cpu())
        return token, bool(self._criteria(self.sequence, self._scores or None).all())
