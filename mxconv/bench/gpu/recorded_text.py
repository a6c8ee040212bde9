"""One text of `model.generate`: timed once, and recorded once before that, with every choice and its margin."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mxconv.bench.gpu.memory import Memory
from mxconv.bench.samples import spread
from mxconv.interop.transformers.drafts import Drafts
from mxconv.interop.transformers.graphs.graphed import Graphed
from mxconv.interop.transformers.run import Choice, Run


@dataclass(frozen=True)
class RecordedText:
    """A prompt's text."""

    token_ids: list[int]  # new ones, of the timed run
    seconds: float
    bandwidth: float  # bytes a second, before and behind
    peak_bytes: int | None  # while it was timed
    choices: list[Choice]  # of the run that was recorded
    run: Run | None  # the timed one; None where transformers decoded


def record_text(
    model: Any,
    prompt: list[int],
    max_new_tokens: int,
    own: Drafts | Graphed | None,
    read: Callable[[], float],
    memory: Memory,
) -> RecordedText:
    """Decode a prompt greedily, twice. The first run warms up, and keeps the scores, which takes time.

    Args:
        model: of transformers.
        prompt: its tokens.
        max_new_tokens: fewer where the model ends the text.
        own: drafts, or plain decoding by replays; None for plain decoding by transformers.
        read: samples read bandwidth.
        memory: of the model's device.
    """
    recorded = _generate(model, prompt, max_new_tokens, own, return_dict_in_generate=True, output_scores=True)
    choices = [_choice(index, scores[0]) for index, scores in enumerate(recorded.scores)]
    rate = read()
    memory.begin()
    memory.wait()
    begin = time.perf_counter()
    sequences = _generate(model, prompt, max_new_tokens, own)
    memory.wait()
    seconds = time.perf_counter() - begin
    peak = memory.peak_bytes()
    bandwidth = spread([rate, read()]).median
    return RecordedText(
        sequences[0, len(prompt) :].tolist(), seconds, bandwidth, peak, choices, None if own is None else own.last
    )


def _generate(model: Any, prompt: list[int], max_new_tokens: int, own: Drafts | Graphed | None, **options: Any) -> Any:
    ids = torch.tensor([prompt], device=model.device)
    drafted = {} if own is None else {"custom_generate": own}
    with torch.no_grad():
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            **drafted,
            **options,
        )


def _choice(index: int, scores: torch.Tensor) -> Choice:
    values, tokens = scores.topk(min(2, len(scores)))
    token = int(scores.argmax())  # among equals, as generate takes it
    runner_up = next((int(other) for other in tokens if int(other) != token), token)
    return Choice(index, token, runner_up, float(values[0] - values[-1]))
