"""Text that a model itself writes, many continuations in one pass: what a draft has to predict."""

from collections.abc import Container, Iterator, Sequence

import numpy as np

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import MOST_ROWS
from mxconv.errors import ModelError
from mxconv.text.distribution import Sampling, distribution, greedy


def continuations(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    num_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    ends: Container[int] = (),
    batch: int = MOST_ROWS,
) -> Iterator[list[int]]:
    """Continue prompts; a text depends on the seed and its number alone, not on what is beside it.

    Args:
        decoder: of the model.
        prompts: at least one token each.
        num_new_tokens: of each, at most.
        sampling: how tokens are drawn; None takes the likeliest.
        seed: of the draws.
        ends: tokens after which a text ends; by default what follows an end of text is text too.
        batch: prompts of a pass, at most 64.

    Yields:
        Each prompt with its continuation, in the order of the prompts.

    Raises:
        ModelError: more tokens than the model has positions.
    """
    most = decoder.config.max_position_embeddings
    for first in range(0, len(prompts), batch):
        texts = [[int(token) for token in prompt] for prompt in prompts[first : first + batch]]
        if (length := max(map(len, texts)) + num_new_tokens) > most:
            raise ModelError(
                f"{decoder.name}: texts of {length} tokens; the model has {most} positions (max_position_embeddings). "
                "Ask for fewer tokens."
            )
        draws = [np.random.Generator(np.random.Philox(key=[seed, first + row])) for row in range(len(texts))]
        caches, fed = [KVCache(decoder.config) for _ in texts], dict(enumerate(texts))
        for _ in range(num_new_tokens):
            sequences = [SequenceRows(ids, caches[row], None, 1) for row, ids in fed.items()]
            logits = [made[0] for made in decoder.forward_batch(sequences)]
            chosen = dict(zip(fed, map(int, greedy(np.array(logits))), strict=True))
            if sampling is not None:
                for row, made in zip(fed, logits, strict=True):
                    sums = distribution(made, sampling).cumsum()
                    place = sums.searchsorted(draws[row].random() * sums[-1], side="right")
                    chosen[row] = min(int(place), len(sums) - 1)
            for row, token in chosen.items():
                texts[row] = [*texts[row], token]
            fed = {row: [token] for row, token in chosen.items() if token not in ends}
            if not fed:
                break
        yield from texts
