from typing import Any

import numpy as np
import pytest

from mxconv.engine.attention import attend, attend_together

rng = np.random.default_rng(3)


def exact_attention(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The definition in float64, head by head."""
    group = len(query) // len(keys)
    rows = []
    for head, row in enumerate(query.astype(np.float64)):
        scores = keys[head // group].astype(np.float64) @ row / np.sqrt(len(row))
        shares = np.exp(scores - scores.max())
        rows.append(shares @ values[head // group] / shares.sum())
    return np.array(rows)


@pytest.mark.parametrize("num_positions", [1, 2, 63, 64, 65, 128, 129, 200])
def test_attention_is_the_softmax_weighted_mean(num_positions: int) -> None:
    for num_heads, num_key_value_heads in ((4, 4), (6, 2), (5, 1)):
        query = rng.standard_normal((num_heads, 10), np.float32) * 3
        keys, values = rng.standard_normal((2, num_key_value_heads, num_positions, 10), np.float32)
        np.testing.assert_allclose(attend(query, keys, values), exact_attention(query, keys, values), atol=2e-6)


def test_large_scores_do_not_overflow() -> None:
    query = np.full((1, 4), 1e3, np.float32)
    keys = np.array([[[1e3] * 4, [-1e3] * 4]], np.float32)
    values = np.array([[[1.0] * 4, [2.0] * 4]], np.float32)
    assert (attend(query, keys, values) == 1).all()


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.3, "logit_cap": 2.0}, {"sinks": np.array([1, -2, 0, 3], np.float32)}]
)
def test_rows_together_are_what_each_is_alone(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    queries = rng.standard_normal((70, 4, 8)).astype(np.float32)
    keys, values = (rng.standard_normal((2, 70, size)).astype(np.float32) for size in (8, 6))
    seen = np.tril(np.ones((70, 70), np.bool_)) & ~np.tril(np.ones((70, 70), np.bool_), -9)
    alone = [attend(query, keys[:, row], values[:, row], **options) for query, row in zip(queries, seen, strict=True)]
    assert np.allclose(attend_together(queries, keys, values, seen, **options), alone, atol=1e-6)
