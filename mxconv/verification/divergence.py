"""How far a draft's next-token distributions are from its target's: perplexity, KL divergence, agreement.

Figures are defined as llama.cpp's `llama-perplexity --kl-divergence` defines them: natural logarithms, the divergence
of the target from the draft, and standard errors over tokens, which take no account of neighbours being alike.
"""

from dataclasses import dataclass, field

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.package.manifest import QualityRecord
from mxconv.text.distribution import greedy

CHUNK_ROWS = 32  # that are float64 at a time


@dataclass
class TokenScores:
    """Scores of a model's distributions, a value a token: lists of arrays that grow text by text."""

    surprisals: list[F64] = field(default_factory=list)  # -log p of the token that came
    divergences: list[F64] = field(default_factory=list)  # of the target from the model
    agreements: list[F64] = field(default_factory=list)  # 1 where both find the same token the likeliest, or 0

    def add(self, target: F32, logits: F32, tokens: I64) -> None:
        """Score rows of logits.

        Args:
            target: (num_tokens, vocab_size) float32 of the target.
            logits: the same of the model; where one has more columns, padding, these count in neither.
            tokens: (num_tokens,) that came.
        """
        columns = min(target.shape[1], logits.shape[1])
        for start in range(0, len(tokens), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            exact, found, came = target[rows, :columns], logits[rows, :columns], tokens[rows]
            log_target, log_model = log_softmax(exact), log_softmax(found)
            self.surprisals.append(-log_model[np.arange(len(came)), came])
            self.divergences.append(divergence(log_target, log_model))
            self.agreements.append((greedy(exact) == greedy(found)).astype(np.float64))

    def quality(self, name: str) -> QualityRecord:
        """The figures of the level of this name over all tokens; what is not finite is None."""
        surprisal, surprisal_error = _mean(np.concatenate(self.surprisals))
        divergences = np.concatenate(self.divergences)
        mean_kl, mean_kl_error = _mean(divergences)
        agreement, agreement_error = _mean(np.concatenate(self.agreements))
        with np.errstate(over="ignore", invalid="ignore"):
            perplexity = float(np.exp(surprisal))
            p99_kl = float(np.quantile(divergences, 0.99))
        figures = {
            "perplexity": perplexity,
            "perplexity_error": perplexity * surprisal_error,
            "mean_kl": mean_kl,
            "mean_kl_error": mean_kl_error,
            "p99_kl": p99_kl,
            "agreement": agreement,
            "agreement_error": agreement_error,
        }
        return QualityRecord(
            name=name, **{key: value if np.isfinite(value) else None for key, value in figures.items()}
        )


def log_softmax(logits: F32) -> F64:
    """Logarithms of probabilities, (num_rows, vocab_size) float64. A row with NaN or +inf becomes NaN."""
    exact = logits.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        exact -= exact.max(axis=-1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    return exact


def divergence(log_target: F64, log_model: F64) -> F64:
    """KL divergence of each row in nats, (num_rows,) float64, of two (num_rows, vocab_size) logarithms.

    What the target never chooses adds nothing; what it may choose and the model never does makes it infinite.
    """
    probabilities = np.exp(log_target)
    with np.errstate(invalid="ignore"):
        terms = probabilities * (log_target - log_model)
    summed: F64 = np.where(probabilities == 0, 0, terms).sum(axis=-1)
    return summed


def _mean(values: F64) -> tuple[float, float]:
    """The mean and its standard error, which a single value has none of: 0."""
    with np.errstate(invalid="ignore"):
        return float(values.mean()), float(values.std() / np.sqrt(max(len(values) - 1, 1)))
