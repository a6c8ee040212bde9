"""The next token from logits: the likeliest, or the distribution by temperature, then top-k, top-p and min-p."""

import math
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.errors import ModelError

NUM_BUCKETS = 4096
NEGLIGIBLE = 64.0  # e^-64 of the most likely token


@dataclass(frozen=True)
class Sampling:
    """How random the next token is. Raises ModelError for a value outside of its limits."""

    temperature: float = 1.0  # divides the logits; above 0
    top_k: int = 0  # how many of the most likely tokens stay, and all that equal the last of them; 0 keeps every token
    top_p: float = 1.0  # the fewest most likely tokens stay whose probabilities reach this, one at least
    min_p: float = 0.0  # only tokens stay that are at least this many times as likely as the likeliest

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 < self.temperature < math.inf):
            raise ModelError(
                f"temperature: {self.temperature!r}; a finite number above 0 is required. "
                "Decode greedily to always get the most likely token."
            )
        if type(self.top_k) is not int or self.top_k < 0:
            raise ModelError(f"top_k: {self.top_k!r}; a whole number is required, 0 for all tokens. Change it.")
        for name, value, off in (("top_p", self.top_p, 1), ("min_p", self.min_p, 0)):
            if not (is_number(value) and 0 <= value <= 1):
                raise ModelError(
                    f"{name}: {value!r}; a number from 0 to 1 is required, {off} for all tokens. Change it."
                )


def greedy(logits: F32) -> I64:
    """The most likely token of each position, (...,) int64, of (..., vocab_size) logits; the lowest id among equals."""
    token_ids: I64 = logits.argmax(axis=-1)
    return token_ids


def distribution(logits: F32, sampling: Sampling) -> F64:
    """The probabilities that a token is drawn with.

    A pure function of the row: equal logits give equal bits. Among equally likely tokens at the edge of top_p those
    with the lowest ids stay, as the greedy choice takes the lowest id.

    Args:
        logits: (vocab_size,) float32; -inf for what may not be drawn.
        sampling: temperature, top_k, top_p and min_p, applied in this order.

    Returns:
        (vocab_size,) float64, their sum 1 up to rounding.

    Raises:
        ModelError: the largest logit is not finite: every logit is -inf, or one is inf or NaN.

    Source:
        Order and limits are those of transformers' TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and
        MinPLogitsWarper.
    """
    largest = logits.max()
    if not np.isfinite(largest):
        raise ModelError(
            f"logits: the largest of {logits.size:,} is {largest}; a finite one is required to draw a token. "
            "Check the weights with mxconv verify, and use less extreme ones."
        )
    kept = _top_k(logits, sampling.top_k)
    with np.errstate(over="ignore"):  # far below the largest: -inf is as good
        exponents = (logits[kept].astype(np.float64) - np.float64(largest)) / sampling.temperature
    weights: F64 = np.exp(exponents)
    if sampling.top_p < 1:
        nucleus = _top_p(exponents, weights, sampling.top_p * float(weights.sum()))
        kept, weights = kept[nucleus], weights[nucleus]
    if sampling.min_p > 0:
        likely = weights >= sampling.min_p  # the likeliest weighs 1
        kept, weights = kept[likely], weights[likely]
    probabilities = np.zeros(logits.size, np.float64)
    probabilities[kept] = weights / weights.sum()
    return probabilities


def _top_k(logits: F32, num_tokens: int) -> I64:
    """Ascending ids of the largest logits, and of what equals the last of them."""
    if not 0 < num_tokens < logits.size:
        return np.arange(logits.size)
    return np.flatnonzero(logits >= np.partition(logits, -num_tokens)[-num_tokens])


def _top_p(exponents: F64, weights: F64, needed: float) -> I64:
    """Ascending indices of the fewest largest weights whose sum reaches `needed`; one at least.

    Only tokens about as likely as the last one are sorted, not the 150,000 of a vocabulary: `exponents` are cut into
    buckets, of which all but one stay or go as a whole.
    """
    depth = np.minimum(-exponents, NEGLIGIBLE)
    buckets = (depth * (NUM_BUCKETS / max(float(depth.max()), 1.0))).astype(np.int64)
    sums = np.cumsum(np.bincount(buckets, weights))
    edge = min(int(np.searchsorted(sums, needed)), len(sums) - 1)
    whole = np.flatnonzero(buckets < edge)
    members = np.flatnonzero(buckets == edge)
    falling = members[np.argsort(-exponents[members], kind="stable")]
    above = float(sums[edge - 1]) if edge else 0.0
    num_kept = 1 + int(np.searchsorted(above + np.cumsum(weights[falling]), needed))
    return np.sort(np.concatenate([whole, falling[:num_kept]]))


def is_number(value: object) -> bool:
    """Whether a value is an int or a float; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
