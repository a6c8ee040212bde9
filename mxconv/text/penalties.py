"""Penalties of logits by the tokens of the text: a bias, a repetition penalty, presence and frequency."""

import math
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, I32, I64
from mxconv.errors import ModelError
from mxconv.text.distribution import is_number

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
