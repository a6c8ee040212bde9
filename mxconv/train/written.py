"""Text that the target itself writes, many continuations in one pass: what a draft has to predict."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mxconv.arch.families.registry import describe_file
from mxconv.arrays import I32
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.tree import MOST_ROWS
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine
from mxconv.package.manifest import FILE_NAME
from mxconv.text.distribution import Sampling, distribution, greedy

BATCH = MOST_ROWS


@contextmanager
def target_decoder(folder: Path) -> Iterator[Decoder]:
    """The decoder of the 16-bit weights, while the files are open.

    Raises:
        MxconvError: the folder holds no model that mxconv decodes.
    """
    if (folder / FILE_NAME).is_file():
        with LoadedPackage(folder, ["target"]) as package:
            decoder = package.levels[0].decoder
            assert decoder is not None
            yield decoder
        return
    with open_checkpoint(folder) as checkpoint:
        config = describe_file(folder / "config.json")
        matrices = Matrices(choose_engine())
        yield matrices.decoder(config, dense_weights(checkpoint.tensors, config, matrices), str(folder))


def continuations(
    decoder: Decoder, prompts: I32, num_new_tokens: int, sampling: Sampling | None, seed: int
) -> Iterator[I32]:
    """Continue prompts; a row depends on the seed and its number alone, not on what is beside it.

    Nothing ends a text before its length: what follows an end of text is text too.

    Args:
        decoder: the target.
        prompts: (n, prompt_length), at least one token.
        num_new_tokens: of each.
        sampling: how tokens are drawn; None takes the likeliest.
        seed: of the draws.

    Yields:
        (up to 64, prompt_length + num_new_tokens) int32, in the order of the prompts.

    Raises:
        ModelError: more tokens than the target has positions.
    """
    most, length = decoder.config.max_position_embeddings, prompts.shape[1] + num_new_tokens
    if length > most:
        raise ModelError(
            f"{decoder.name}: texts of {length} tokens; the model has {most} positions (max_position_embeddings). "
            "Ask for fewer tokens."
        )
    for first in range(0, len(prompts), BATCH):
        rows = [prompt.tolist() for prompt in prompts[first : first + BATCH]]
        draws = [np.random.Generator(np.random.Philox(key=[seed, first + row])) for row in range(len(rows))]
        caches = [KVCache(decoder.config) for _ in rows]
        fed: Sequence[Sequence[int]] = rows
        for _ in range(num_new_tokens):
            sequences = [SequenceRows(ids, cache, None, 1) for ids, cache in zip(fed, caches, strict=True)]
            logits = [made[0] for made in decoder.forward_forest(sequences)]
            if sampling is None:
                tokens = [int(token) for token in greedy(np.array(logits))]
            else:
                shares = [distribution(row, sampling).cumsum() for row in logits]
                tokens = [
                    min(int(share.searchsorted(draw.random() * share[-1], side="right")), len(share) - 1)
                    for share, draw in zip(shares, draws, strict=True)
                ]
            rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
            fed = [[token] for token in tokens]
        yield np.array(rows, np.int32)
