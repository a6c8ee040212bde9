"""One text that grows as `generate` would let it grow, whoever proposes its tokens."""

from typing import TYPE_CHECKING, Any

import torch

from mxconv.interop.transformers.cache_name import cache_name
from mxconv.interop.transformers.proposer import Proposer
from mxconv.interop.transformers.run import Choice
from mxconv.interop.transformers.target import TorchTarget

if TYPE_CHECKING:
    from transformers import GenerationConfig
    from transformers.generation import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer


class Decoding:
    """One text that grows, and what is recorded on the way."""

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
        self.choices: list[Choice] = []
        self.num_rounds = 0
        self._streamer: BaseStreamer | None = None
        self._processor, self._criteria, self._config = logits_processor, stopping_criteria, config
        self._scores: tuple[torch.Tensor, ...] = ()
        self._logits: tuple[torch.Tensor, ...] = ()

    def stream_to(self, told: "BaseStreamer | None", own: "BaseStreamer | None") -> None:
        """Put tokens where transformers says, which has told the prompt already, or else where our caller does."""
        self._streamer = told or own
        if told is None and own is not None:  # transformers hands none to a callable
            own.put(self.sequence.cpu())

    def run(self, chain: Proposer | None) -> None:
        """Rounds until a stopping criterion says so; without a chain, one token a round."""
        try:
            while not self._grow(chain):
                pass
        finally:
            self.target.finish()
        if self._streamer is not None:
            self._streamer.end()

    def output(self) -> Any:
        """As `generate` returns it."""
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
        """A round: what is proposed, evaluated, kept. Says whether to stop."""
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
        """Evaluate what was proposed; append the tokens that agree and one more.

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
        """Choose a token from (1, vocab_size) logits as `generate` does; says which, and whether to stop."""
        scores = self._processor(self.sequence, logits.clone())
        if self._config.do_sample:
            chosen = torch.multinomial(scores.softmax(dim=-1), num_samples=1)
        else:
            chosen = scores.argmax(dim=-1, keepdim=True)
            self._note(int(chosen), scores[0])
        if self._config.return_dict_in_generate:
            self._scores += (scores,) if self._config.output_scores else ()
            self._logits += (logits,) if self._config.output_logits else ()
        token = int(chosen)
        self.sequence = torch.cat((self.sequence, chosen.to(self.sequence.dtype)), dim=-1)
        self.context.append(token)
        if self._streamer is not None:
            self._streamer.put(chosen[0].cpu())
        return token, bool(self._criteria(self.sequence, self._scores or None).all())

    def _note(self, token: int, scores: torch.Tensor) -> None:
        values, tokens = scores.topk(min(2, len(scores)))
        runner_up = next((int(other) for other in tokens if int(other) != token), token)
        margin = float(values[0] - values[-1])
        self.choices.append(Choice(len(self.choices), token, runner_up, margin))
