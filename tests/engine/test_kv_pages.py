"""Decoders over pages: rounded alike by both, the same bits wherever pages lie, and prefixes that need no pass."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_invariance import assert_same_bits

from mxconv.codecs.float16 import BF16, FP16
from mxconv.engine.cache import KVCache
from mxconv.engine.kv_pool import KV_DTYPES, PAGE, KvDtype, KVPool
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import Tree
from mxconv.kernels.engine import native_names


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=["bf16", "fp16"])
def test_native_rounding_is_that_of_the_codecs(float_format: Any) -> None:
    _native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    values = np.concatenate([patterns | low for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)])
    every = np.concatenate([values.view(np.float32), float_format.decode(np.arange(1 << 16, dtype=np.uint16))])
    every = every[~np.isnan(every)]
    found = np.empty(len(every), np.uint16)
    _native.round_for_cache(every, "bf16" if float_format is BF16 else "fp16", found)
    assert (found == float_format.encode(every)).all()
    nan = np.empty(1, np.uint16)
    _native.round_for_cache(np.array([np.nan], np.float32), "bf16" if float_format is BF16 else "fp16", nan)
    assert np.isnan(float_format.decode(nan)).all()


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("kind", ["numpy", *native_names()])
def test_rows_are_their_paths_alone_wherever_pages_lie(
    tiny_oracle: Callable[[str], Any], native: Callable[..., Any], kind: str, dtype: KvDtype
) -> None:
    """Two texts in turns get pages of several arrays in no order; trees and windows cross them."""
    name = "mistral, long window"
    decoder = tiny_oracle(name).decoder if kind == "numpy" else native(name, "BF16", "dense", kind, 2)
    text = tiny_oracle(name).text(160)
    pool = KVPool(decoder.config, dtype=dtype)
    alone = [decoder.forward(ids, KVCache(decoder.config, 200, dtype=dtype)) for ids in (text, text[::-1])]
    caches = [KVCache(decoder.config, pool=pool) for _ in range(2)]
    for start, stop in ((0, 50), (50, 120), (120, 150)):
        batch = [SequenceRows(ids[start:stop], cache) for ids, cache in zip((text, text[::-1]), caches, strict=True)]
        for found, expected in zip(decoder.forward_batch(batch), alone, strict=True):
            assert_same_bits(found, expected[start:stop], f"{kind}, {dtype}, from {start}")
    assert caches[0].numbers.tolist() != sorted(caches[0].numbers.tolist()) or len(pool.pages.arrays) > 1
    tree = Tree([-1, 0, 0, 2, 3])
    found = decoder.forward([text[150], 5, *text[151:154]], caches[0], tree=tree)
    assert_same_bits(found[[0, 2, 3, 4]], alone[0][150:154], f"{kind}, {dtype}, a branch")
    caches[0].keep(150, [0, 2, 3, 4])
    assert_same_bits(decoder.forward(text[154:], caches[0]), alone[0][154:], f"{kind}, {dtype}, after it")


@pytest.mark.parametrize("kind", ["numpy", *native_names()[:1]])
def test_after_a_kept_prefix_logits_are_those_of_the_whole_text(
    tiny_oracle: Callable[[str], Any], native: Callable[..., Any], kind: str
) -> None:
    decoder = tiny_oracle("llama").decoder if kind == "numpy" else native("llama", "BF16", "dense", kind, 2)
    text = tiny_oracle("llama").text(150)
    pool = KVPool(decoder.config, dtype="bf16")
    first = KVCache(decoder.config, pool=pool)
    expected = decoder.forward(text, first)
    first.publish(text)
    first.release()
    again = KVCache(decoder.config, pool=pool)
    assert again.adopt(text) == 2 * PAGE
    assert_same_bits(decoder.forward(text[2 * PAGE :], again), expected[2 * PAGE :], kind)
    other = KVCache(decoder.config, pool=pool)
    assert other.adopt([*text[:PAGE], (text[PAGE] + 1) % 96, *text[PAGE + 1 :]]) == PAGE
    whole = KVCache(decoder.config, pool=pool)
    assert whole.adopt(text[: 2 * PAGE]) == PAGE  # of a text of whole pages the last token is evaluated
    assert_same_bits(decoder.forward(text[PAGE : 2 * PAGE], whole), expected[PAGE : 2 * PAGE], kind)


def test_rounded_caches_differ_from_whole_ones_by_no_more_than_rounding(tiny_oracle: Callable[[str], Any]) -> None:
    decoder, text = tiny_oracle("llama").decoder, tiny_oracle("llama").text(70)
    whole = decoder.forward(text, KVCache(decoder.config))
    for dtype, most in (("bf16", 2**-5), ("fp16", 2**-8)):
        rounded = decoder.forward(text, KVCache(decoder.config, dtype=dtype))
        assert 0 < np.abs(rounded - whole).max() < most * np.abs(whole).max()
