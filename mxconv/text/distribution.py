"""The next token from logits: the likeliest, or the distribution by temperature, then top-k, top-p and min-p.

Before that, logits get penalties by the tokens of the text: a bias, a repetition penalty, presence and frequency.
"""

import math
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, F64, I32, I64
from mxconv.errors import ModelError

BLOCK = 64  # values of which only the greatest is compared first


@dataclass(frozen=True)
class Sampling:
    """The randomness of the next token. Raises ModelError for a value outside of its limits."""

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

    @property
    def keeps_all(self) -> bool:
        """Whether every token may be drawn."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0


def greedy(logits: F32) -> I64:
    """The most likely token of each position, (...,) int64, of (..., vocab_size) logits; the lowest id among equals."""
    token_ids: I64 = logits.argmax(axis=-1)
    return token_ids


def distribution(logits: F32, sampling: Sampling) -> F64:
    """The probabilities that each token is drawn with, as `likely_tokens` has them: (vocab_size,) float64."""
    probabilities = np.zeros(logits.size, np.float64)
    token_ids, shares = likely_tokens(logits, sampling)
    probabilities[token_ids] = shares
    return probabilities


def likely_tokens(logits: F32, sampling: Sampling) -> tuple[I64, F64]:
    """The tokens that may be drawn, and the probabilities that they are drawn with.

    A pure function of the row: equal logits give equal bits. Among equally likely tokens at the edge of top_p those
    with the lowest ids stay, as the greedy choice takes the lowest id.

    Args:
        logits: (vocab_size,) float32; -inf for what may not be drawn.
        sampling: temperature, top_k, top_p and min_p, applied in this order.

    Returns:
        Ascending ids, and their probabilities in float64, the sum of which is 1 up to rounding.

    Raises:
        ModelError: the largest logit is not finite: every logit is -inf, or one is inf or NaN.

    Source:
        Order and limits are those of transformers' TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper and
        MinPLogitsWarper.
    """
    largest = largest_of(logits)
    left_out = 0.0
    if 0 < sampling.top_k < logits.size:
        kept = _top_k(logits, sampling.top_k)
    elif (sampling.top_p < 1 or sampling.min_p > 0) and 1e-30 < sampling.temperature < 1e30:
        kept, left_out = _candidates(logits, largest, sampling)
    else:
        kept = np.arange(logits.size)
    with np.errstate(over="ignore", under="ignore"):  # far below the largest: -inf and 0 are as good
        exponents = (logits[kept].astype(np.float64) - np.float64(largest)) / sampling.temperature
        weights: F64 = np.exp(exponents)
    if sampling.top_p < 1:
        falling = np.argsort(-exponents, kind="stable")
        sums = np.cumsum(weights[falling])
        num_kept = 1 + int(np.searchsorted(sums, sampling.top_p * (float(weights.sum()) + left_out)))
        nucleus = np.sort(falling[:num_kept])
        kept, weights = kept[nucleus], weights[nucleus]
    if sampling.min_p > 0:
        likely = weights >= sampling.min_p  # the likeliest weighs 1
        kept, weights = kept[likely], weights[likely]
    return kept, weights / weights.sum()


def largest_of(logits: F32) -> np.float32:
    """The largest of some logits, (vocab_size,). Raises ModelError where it is not finite."""
    largest: np.float32 = logits.max()
    if not np.isfinite(largest):
        raise ModelError(
            f"logits: the largest of {logits.size:,} is {largest}; a finite one is required to draw a token. "
            "Check the weights with mxconv verify, and use less extreme ones."
        )
    return largest


def _top_k(logits: F32, num_tokens: int) -> I64:
    """Ascending ids of the largest logits, and of what equals the last of them."""
    large = logits[logits >= least_of_largest(logits, num_tokens)]
    return np.flatnonzero(logits >= np.partition(large, -num_tokens)[-num_tokens])


def least_of_largest(values: F32, count: int) -> np.float32:
    """A number that so many of some values reach, and not many more: found by the maxima of blocks."""
    maxima = np.maximum.reduceat(values, np.arange(0, values.size, BLOCK))
    least: np.float32 = np.partition(maxima, -count)[-count] if count <= maxima.size else values.min()
    return least


def _candidates(logits: F32, largest: np.float32, sampling: Sampling) -> tuple[I64, float]:
    """Ascending ids of all tokens that top_p and min_p can keep, and the weight of the others, in float32.

    A vocabulary has 150,000 tokens, of which some hundreds are candidates: only these are evaluated in float64 and
    sorted. The least likely token of a nucleus is as likely as any outside of it, and so weighs at least as much as
    they do on average, were there as many as tokens.
    """
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits - largest) * np.float32(1 / sampling.temperature))
    least = max(sampling.min_p, (1 - sampling.top_p) * float(weights.sum()) / (logits.size + 1))
    candidates = weights >= np.float32(0.999 * least)  # less, for rounding
    kept = np.flatnonzero(candidates)
    weights[kept] = 0
    return kept, float(weights.sum())


def is_number(value: object) -> bool:
    """Whether a value is an int or a float; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


LEAST_REPETITION, MOST_REPETITION = 0.001, 1000.0
MOST_BIAS = 100.0


@dataclass(frozen=True)
class Penalties:
    """Changes of logits by the tokens of the text before them. The defaults change nothing.

    Raises:
        ModelError: a value outside of its limits.

    Source:
        Repetition: transformers' RepetitionPenaltyLogitsProcessor. The others: OpenAI's interface.
    """

    repetition: float = 1.0  # divides positive logits of tokens of prompt and answer, multiplies negative ones
    presence: float = 0.0  # is subtracted from the logits of tokens that the answer has
    frequency: float = 0.0  # is subtracted from them once for every time that the answer has them
    logit_bias: tuple[tuple[int, float], ...] = ()  # tokens, each once, and what is added to their logits, -100 to 100
    min_new_tokens: int = 0  # of the answer, before which none of `ends` is chosen
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (is_number(self.repetition) and LEAST_REPETITION <= self.repetition <= MOST_REPETITION):
            raise ModelError(
                f"repetition_penalty: {self.repetition!r}; a number from {LEAST_REPETITION} to {MOST_REPETITION:g} is "
                "required, 1 for none. Change it."
            )
        for name, value in (("presence_penalty", self.presence), ("frequency_penalty", self.frequency)):
            if not (is_number(value) and math.isfinite(value)):
                raise ModelError(f"{name}: {value!r}; a finite number is required, 0 for none. Change it.")
        for token, bias in self.logit_bias:
            if not (is_number(bias) and abs(bias) <= MOST_BIAS):
                raise ModelError(
                    f"logit_bias: {bias!r} for token id {token}; a number from -100 to 100 is required. Change it."
                )

    @property
    def is_neutral(self) -> bool:
        """Whether they change no logits, whatever the text."""
        changes = self.presence or self.frequency or self.logit_bias or (self.min_new_tokens and self.ends)
        return self.repetition == 1 and not changes

    def check(self, vocab_size: int) -> None:
        """Raises ModelError for a bias on a token that a model does not have."""
        for token, _ in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise ModelError(
                    f"logit_bias: token id {token}; ids from 0 to {vocab_size - 1} are required. "
                    "Use the tokenizer that belongs to the model."
                )


def penalized(logits: F32, penalties: Penalties, tokens: I64, num_in_text: I32, num_in_answer: I32) -> F32:
    """The logits that a token is chosen by, a new row: first the bias, then repetition, frequency and presence.

    Args:
        logits: (vocab_size,) float32, of the model.
        penalties: what is held against tokens.
        tokens: (n,) ids, each once, in any order; those that the row does not have are left out.
        num_in_text: (n,) how often prompt and answer have each; 0 for none.
        num_in_answer: (n,) how often the answer has.
    """
    row, num_new = logits.copy(), num_in_answer.sum()
    for token, bias in penalties.logit_bias:
        if token < len(row):
            row[token] += np.float32(bias)
    if len(tokens) and tokens.max() >= len(row):
        inside = tokens < len(row)
        tokens, num_in_text, num_in_answer = tokens[inside], num_in_text[inside], num_in_answer[inside]
    values = row[tokens]
    if penalties.repetition != 1:
        factor = np.float32(penalties.repetition)
        values = np.where(num_in_text > 0, np.where(values < 0, values * factor, values / factor), values)
    values -= np.float32(penalties.frequency) * num_in_answer.astype(np.float32)
    values -= np.float32(penalties.presence) * (num_in_answer > 0).astype(np.float32)
    row[tokens] = values
    if num_new < penalties.min_new_tokens:
        row[[token for token in penalties.ends if token < len(row)]] = -np.inf
    return row
