"""Retrieved pages: chosen as Quest chooses them, by NumPy and by native kernels, for each row by its path alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_models import native_copy, with_format
from row_invariance import assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.codecs.float16 import FP16
from mxconv.engine.attention_window import RetrievedPages
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import KV_DTYPES, PAGE, KvDtype
from mxconv.engine.matrices import Matrices
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

LENGTH = 700  # eleven pages
PATTERNS = (RetrievedPages(4, 64, 2), RetrievedPages(0, 100, 1), RetrievedPages(70, 130, 3))
ARCHITECTURES = ("llama, biases", "llama, one KV head", "qwen3, biases and window")
IMPLEMENTATIONS = native_names()
KINDS = ("numpy", *IMPLEMENTATIONS)


def of_kind(oracle: Any, kind: str, num_threads: int = 2) -> Decoder:
    """A model of more positions than the oracle's, in F16."""
    config, weights = replace(oracle.decoder.config, max_position_embeddings=1024), with_format(oracle.weights, FP16)
    if kind == "numpy":
        return Decoder(config, weights, kind)
    return native_copy(config, weights, Matrices(choose_engine(kind, num_threads)))


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_the_chosen_pages_are_those_whose_keys_may_score_highest(pattern: RetrievedPages) -> None:
    generator = np.random.default_rng(3)
    queries, keys = generator.standard_normal((3, 8), np.float32), generator.standard_normal((LENGTH, 8), np.float32)
    keys[::97] *= 4
    found = pattern.retrieved(queries, keys)
    first, last = -(-pattern.sink // PAGE), (LENGTH - pattern.window) // PAGE
    bounds = {
        page: sum(np.maximum(query * block.max(axis=0), query * block.min(axis=0)).sum() for query in queries)
        for page in range(first, last)
        if len(block := keys[page * PAGE : (page + 1) * PAGE])
    }
    for page, bound in bounds.items():  # of the sum of a key's scores
        assert (keys[page * PAGE : (page + 1) * PAGE] @ queries.sum(axis=0)).max() <= bound + 1e-3
    kept = set(sorted(bounds, key=lambda page: -bounds[page])[: pattern.pages])
    expected = [i for i in range(LENGTH) if i // PAGE in kept or not first <= i // PAGE < last]
    assert found.tolist() == expected
    assert len(kept) == pattern.pages and len(expected) < LENGTH


@pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_native_kernels_retrieve_what_numpy_does(
    tiny_oracle: Callable[[str], Any], architecture: str, dtype: KvDtype
) -> None:
    oracle, ids = tiny_oracle(architecture), tiny_oracle(architecture).text(LENGTH)
    whole = of_kind(oracle, IMPLEMENTATIONS[0]).forward(ids, KVCache(oracle.decoder.config, dtype=dtype))
    for pattern in PATTERNS:
        expected, found = (
            of_kind(oracle, kind).variant(pattern=pattern).forward(ids, KVCache(oracle.decoder.config, dtype=dtype))
            for kind in ("numpy", IMPLEMENTATIONS[0])
        )
        differs = (
            np.abs(found - expected).max(axis=1) > 2e-3 * np.abs(expected).max()
        )  # bounds of two pages may be near
        assert differs.mean() < 0.01, f"{pattern}: {differs.sum()} rows"
        assert (np.abs(found - whole).max(axis=1)[-300:] > 0.01 * np.abs(whole).max()).any(), "nothing was left out"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_pages_depend_on_its_path_alone(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    oracle = tiny_oracle("llama, biases")
    ids = oracle.text(LENGTH if kind != "numpy" else 300)
    for pattern in PATTERNS[: 3 if kind != "numpy" else 1]:
        decoder, alone = (of_kind(oracle, kind, threads).variant(pattern=pattern) for threads in (3, 1))
        expected = alone.forward(ids, KVCache(alone.config))
        for widths in ([300, 64, 1, 130, 3, 90], [33]):
            assert_same_bits(logits_in_steps(decoder, ids, widths), expected, f"{pattern}, in steps of {widths}")
        assert_same_bits(
            np.concatenate(logits_after_rollback(decoder, ids, 251, ids[40:129])), expected, f"{pattern}, after others"
        )


@pytest.mark.parametrize("kind", KINDS[1:2])
def test_a_tree_in_one_call_is_that_of_passes(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    oracle = tiny_oracle("llama, biases")
    draft, ids = of_kind(oracle, kind).variant(pattern=PATTERNS[0]), oracle.text(315)
    cache = KVCache(draft.config)
    draft.forward(ids[:-1], cache)
    grown = draft.grow(ids[-1:], cache, draft.config.vocab_size, TreeLimits(12, [0.0] * 12, 0.0, 0.0, 1.0, 1))
    assert grown is not None and len(grown.tokens) == 12
    logits = draft.forward([*ids, *grown.tokens[:-1]], KVCache(draft.config))
    assert logits[314:].argmax(axis=1).tolist() == grown.tokens


@pytest.mark.parametrize("kind", KINDS[:2])
def test_where_all_pages_are_kept_no_bit_changes(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    oracle = tiny_oracle("qwen3, biases and window")
    decoder, ids = of_kind(oracle, kind), oracle.text(300)
    expected = decoder.forward(ids, KVCache(decoder.config))
    for pattern in (
        RetrievedPages(0, 64, 4),
        RetrievedPages(300, 64, 1),
        RetrievedPages(1 << 62, 64, 1),
        RetrievedPages(0, 250, 1),
    ):
        assert_same_bits(decoder.variant(pattern=pattern).forward(ids, KVCache(decoder.config)), expected, str(pattern))


def test_what_cannot_be_retrieved_is_refused(tiny_oracle: Callable[[str], Any]) -> None:
    with pytest.raises(ModelError, match=r"^attention window: 63 positions; at least 64 is required\.$"):
        RetrievedPages(0, 63, 1)
    with pytest.raises(ModelError, match=r"^attention pages: 0 pages; at least 1 is required\.$"):
        RetrievedPages(0, 64, 0)
    message = "draft: pages are to be retrieved, and no layer of mistral attends to keys of every position"
    with pytest.raises(ModelError, match=message):
        tiny_oracle("mistral, window").decoder.variant(pattern=PATTERNS[0], name="draft")
