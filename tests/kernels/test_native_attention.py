"""The native kernels of attention against exact arithmetic, and a head's or a token's bits among others."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.kernels.engine import choose_engine, native_names

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def attend(
    engine: Any, query: np.ndarray, keys: np.ndarray, values: np.ndarray, run: int, others: list[int], cap: float = 0
) -> np.ndarray:
    return attend_tokens(engine, np.atleast_2d(query)[None], keys, values, [run], [others], cap).reshape(query.shape)


def attend_tokens(
    engine: Any,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    runs: list[int],
    others: list[list[int]],
    cap: float = 0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Of queries (tokens, heads, head_dim); each token sees as many others."""
    out = np.empty_like(queries)
    positions = np.array(others, np.int32).reshape(len(queries), -1)
    _native.attend(engine, queries, keys, values, np.array(runs, np.int32), positions, cap, out, sinks)
    return out


def softmax_mean(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, cap: float = 0, sink: float = -np.inf
) -> np.ndarray:
    """The definition in float64."""
    scores = keys.astype(np.float64) @ query.astype(np.float64)
    scores = np.append(cap * np.tanh(scores / cap) if cap else scores, sink)
    shares = np.exp(scores - scores.max())
    return (shares / shares.sum())[:-1] @ values.astype(np.float64)


@pytest.mark.parametrize("head_dim", [2, 12, 16, 24, 80, 130])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("cap", [0.0, 1.5])
def test_attention_is_the_mean_by_the_softmax_of_scores(
    engine: Any, rng: np.random.Generator, head_dim: int, count: int, cap: float
) -> None:
    """Of scores that are capped, or not; over a run of positions alone, and over some beside it."""
    query = (normal(rng, head_dim) * 2 / math.sqrt(head_dim)).astype(np.float32)
    keys, values = normal(rng, 2, count + 3, head_dim)
    for others in ([], [count + 2, count]):
        order = [*range(count), *others]
        found = attend(engine, query, keys, values, count, others, cap)
        np.testing.assert_allclose(found, softmax_mean(query, keys[order], values[order], cap), atol=3e-6)


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_sinks_take_a_share_and_give_nothing(engine: Any, rng: np.random.Generator, count: int) -> None:
    queries, keys, values = normal(rng, 1, 5, 24), *normal(rng, 2, count, 24)
    sinks, none = np.array([-80, -1, 0.5, 3, 80], np.float32), np.full(5, -np.inf, np.float32)
    found = attend_tokens(engine, queries, keys, values, [count], [[]], sinks=sinks)
    for head, sink in enumerate(sinks.tolist()):
        expected = softmax_mean(queries[0, head], keys, values, sink=sink)
        np.testing.assert_allclose(found[0, head], expected, atol=3e-6)
    found = attend_tokens(engine, queries, keys, values, [count], [[]], sinks=none)
    assert (found == attend_tokens(engine, queries, keys, values, [count], [[]])).all()


@pytest.mark.parametrize("num_heads", [2, 17, 40])
@pytest.mark.parametrize("head_dim", [10, 64, 144])
def test_heads_that_share_keys_get_the_bits_that_each_gets_alone(
    engine: Any, rng: np.random.Generator, num_heads: int, head_dim: int
) -> None:
    queries, keys, values = normal(rng, num_heads, head_dim), *normal(rng, 2, 150, head_dim)
    together = attend(engine, queries, keys, values, 130, [140, 135])
    alone = np.stack([attend(engine, query, keys, values, 130, [140, 135]) for query in queries])
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("head_dim", [10, 64, 144])
@pytest.mark.parametrize(
    "runs", [list(range(120, 160)), [1, 2, 3, 4, 5], [64, 63, 65, 128, 129, 3], [1], [127, 128], [0, 0, 0]]
)
def test_tokens_that_share_keys_get_the_bits_that_each_gets_alone(
    engine: Any, rng: np.random.Generator, runs: list[int], head_dim: int
) -> None:
    keys, values = normal(rng, 2, 170, head_dim)
    for num_heads in (1, 2, 3, 8):
        queries = normal(rng, len(runs), num_heads, head_dim)
        others = rng.integers(0, 170, (len(runs), 5)).tolist()
        for seen in (others, [[] for _ in runs]):
            if not any(seen) and 0 in runs:
                continue
            together = attend_tokens(engine, queries, keys, values, runs, seen)
            alone = [attend(engine, query, keys, values, *of) for query, *of in zip(queries, runs, seen, strict=True)]
            assert together.tobytes() == np.stack(alone).tobytes()


def test_scores_of_any_size_give_a_mean_of_values(engine: Any, rng: np.random.Generator) -> None:
    keys, values = normal(rng, 2, 100, 16)
    for scale in (1e-30, 1e3, 1e20, 1e37):
        query = normal(rng, 16) * np.float32(scale)
        found = attend(engine, query, keys, values, 100, [])
        scores = keys.astype(np.float64) @ query.astype(np.float64)
        if scale >= 1e20:  # one position takes all
            assert (found == values[scores.argmax()]).all()
        else:
            assert np.isfinite(found).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_attention_over_numbers_that_are_none_is_none(engine: Any, rng: np.random.Generator, value: float) -> None:
    query, keys, values = normal(rng, 16), *normal(rng, 2, 70, 16)
    keys[66, 3] = value
    query[3] = 1
    found = attend(engine, query, keys, values, 70, [])
    if value == -np.inf:  # e^-inf is a share of nothing
        seen = np.arange(70) != 66
        np.testing.assert_allclose(found, softmax_mean(query, keys[seen], values[seen]), atol=3e-6)
    else:
        assert np.isnan(found).all()
    keys[66, 3], values[5, 2] = 0, value
    found = attend(engine, query, keys, values, 70, [])
    assert not np.isfinite(found[2])
    assert np.isfinite(np.delete(found, 2)).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_visible_positions_may_lie_anywhere(data: st.DataObject) -> None:
    """The bits are those of the same keys and values in a row."""
    engine = choose_engine(data.draw(st.sampled_from(native_names())), 1)
    head_dim = data.draw(st.sampled_from([6, 16, 40, 64]))
    count = data.draw(st.integers(1, 200))
    run = data.draw(st.integers(0, count))
    others = data.draw(st.lists(st.integers(0, count - 1), max_size=64))
    if run + len(others) == 0:
        run = 1
    rng = np.random.default_rng(count)
    query, keys, values = normal(rng, head_dim), *normal(rng, 2, count, head_dim)
    order = [*range(run), *others]
    in_a_row = attend(engine, query, keys[order], values[order], len(order), [])
    assert attend(engine, query, keys, values, run, others).tobytes() == in_a_row.tobytes()


def test_positions_behind_the_visible_ones_are_never_read(engine: Any, rng: np.random.Generator) -> None:
    query, keys, values = normal(rng, 10), *normal(rng, 2, 90, 10)
    expected = attend(engine, query, keys, values, 70, [])
    keys[70:] = values[70:] = np.nan
    assert (attend(engine, query, keys, values, 70, []) == expected).all()
