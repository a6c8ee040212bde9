"""How likely the target held a token, and which others it held likely."""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32

LEAST = -9999.0  # OpenAI's number for what cannot be; JSON has no infinity


@dataclass(frozen=True)
class TokenLogprobs:
    """Of one place.

    Args:
        logprob: of the token that was chosen.
        top: the likeliest tokens and theirs, likeliest first, the lowest ids among equals.
    """

    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: F32, token: int, num_top: int) -> TokenLogprobs:
    """Logarithms of the softmax of the target's own logits: before temperature, top_k and top_p.

    A function of the row alone, like the row of its path.

    Args:
        logits: (vocab_size,) float32.
        token: the chosen one.
        num_top: how many of the likeliest to name.
    """
    exponents = logits.astype(np.float64) - np.float64(logits.max())
    with np.errstate(under="ignore"):
        logprobs = exponents - np.log(np.exp(exponents).sum())
    top: list[tuple[int, float]] = []
    if num_top:
        least = np.partition(logits, -num_top)[-num_top] if num_top < logits.size else logits.min()
        likely = np.flatnonzero(logits >= least)
        likely = likely[np.argsort(-logits[likely], kind="stable")][:num_top]
        top = [(int(one), max(LEAST, float(logprobs[one]))) for one in likely]
    return TokenLogprobs(max(LEAST, float(logprobs[token])), top)
