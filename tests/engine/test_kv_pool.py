"""Pages, their owners and their budget beside a plain model of what each text holds, and decoders over pages."""

import contextlib
from collections.abc import Callable
from functools import cache as cached
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from row_invariance import assert_same_bits

from mxconv.arch.families.registry import describe_values
from mxconv.codecs.float16 import BF16, FP16
from mxconv.engine import kv_pool
from mxconv.engine.cache import KVCache
from mxconv.engine.kv_pool import FORMATS, KV_DTYPES, PAGE, KvDtype, KVPool
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError, PoolFull
from mxconv.kernels.engine import native_names
from mxconv.speculation.session import borrowed

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 4,
}
CONFIG = describe_values(LLAMA)
PAGE_BYTES = KVPool(CONFIG).page_bytes
NUMBERS = np.random.default_rng(1).standard_normal((1009, 2, 1, 4), np.float32)


@cached
def rows_of(text: tuple[int, ...], position: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """What a decoder would make of a token: it depends on the text up to there."""
    keys, values = NUMBERS[abs(hash((text[: position + 1], layer))) % len(NUMBERS)]
    return keys, values


def feed(cache: KVCache, text: tuple[int, ...]) -> None:
    """Evaluate the tokens of a text that a cache lacks."""
    first = cache.length
    cache.reserve(len(text) - first)
    for layer in range(2):
        made = [rows_of(text, position, layer) for position in range(first, len(text))]
        if made:
            cache.write(layer, np.array([keys for keys, _ in made]), np.array([values for _, values in made]))
    cache.advance(len(text) - first)


def check(cache: KVCache, text: tuple[int, ...]) -> None:
    """Every position holds what belongs there."""
    assert cache.length == len(text)
    kept = FORMATS[cache.dtype]
    for layer in range(2 if text else 0):
        expected = np.array([rows_of(text, position, layer) for position in range(len(text))]).transpose(1, 2, 0, 3)
        if kept is not None:
            expected = kept.decode(kept.encode(expected))
        np.testing.assert_array_equal(np.array(cache.read(layer, range(len(text)))), expected)


class Held:
    """A cache and the text that it should hold."""

    def __init__(self, pool: KVPool) -> None:
        self.cache = KVCache(CONFIG, pool=pool)
        self.text: tuple[int, ...] = ()


class Pooled(RuleBasedStateMachine):
    """Sequences come, adopt, grow, are cut, lend their cache, publish and go; two tokens, so that texts meet."""

    caches = Bundle("caches")
    most_pages = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(CONFIG, PAGE_BYTES // 2 * self.most_pages + 1, "bf16")
        self.held: list[Held] = []

    @rule(target=caches)
    def come(self) -> Held:
        self.held.append(Held(self.pool))
        return self.held[-1]

    @rule(held=caches, count=st.sampled_from([1, 5, 63, 64, 65, 130, 200]), token=st.integers(0, 1))
    def grow(self, held: Held, count: int, token: int) -> None:
        text = held.text + (token,) * count
        before = list(held.cache.numbers), held.cache.length
        try:
            feed(held.cache, text)
        except PoolFull:
            assert (list(held.cache.numbers), held.cache.length) == before
            available = self.pool.most_pages - self.pool.num_used + self.pool.num_kept
            assert available is not None and available < count // PAGE + 2
        else:
            held.text = text

    @rule(held=caches, back=st.sampled_from([0, 1, 7, 64, 100, 1000]))
    def cut(self, held: Held, back: int) -> None:
        held.text = held.text[: max(len(held.text) - back, 0)]
        held.cache.truncate(len(held.text))

    @rule(held=caches, back=st.integers(0, 90), number=st.integers(0, 9), seed=st.integers(0, 99))
    def keep(self, held: Held, back: int, number: int, seed: int) -> None:
        """Rows move; what they hold afterwards is what they held."""
        start = max(len(held.text) - back, 0)
        rows = np.random.default_rng(seed).permutation(len(held.text) - start)[:number]
        rows = [int(row) for row in sorted(rows)]
        before = [held.cache.read(layer, [*range(start), *(start + row for row in rows)]) for layer in range(2)]
        try:
            held.cache.keep(start, rows)
        except PoolFull:
            return
        after = [held.cache.read(layer, range(held.cache.length)) for layer in range(2)]
        np.testing.assert_array_equal(np.array(after), np.array(before))
        if rows == list(range(len(rows))):
            held.text = held.text[: start + len(rows)]
        else:  # these rows are of no text
            held.text = held.text[:start]
            held.cache.truncate(start)

    @rule(held=caches, back=st.integers(0, 200), count=st.integers(1, 70))
    def lend(self, held: Held, back: int, count: int) -> None:
        start = max(len(held.text) - back, 0)
        with borrowed(held.cache, start, len(held.text) - start) as cache, contextlib.suppress(PoolFull):
            feed(cache, held.text[:start] + (3,) * count)

    @rule(held=caches, back=st.sampled_from([0, 0, 3, 70]))
    def publish(self, held: Held, back: int) -> None:
        held.cache.publish(held.text[: max(len(held.text) - back, 0)])

    @rule(held=caches, count=st.integers(0, 200), token=st.integers(0, 1))
    def adopt(self, held: Held, count: int, token: int) -> None:
        held.cache.truncate(0)
        length = held.cache.adopt([token] * count)
        assert length % PAGE == 0 and length <= max(count - 1, 0)
        held.text = (token,) * length

    @rule(held=consumes(caches), by_name=st.booleans())
    def go(self, held: Held, by_name: bool) -> None:
        self.held.remove(held)
        if by_name:
            held.cache.release()
            assert held.cache.capacity == 0
        del held.cache

    @invariant()
    def every_cache_holds_its_text(self) -> None:
        for held in self.held:
            check(held.cache, held.text)

    @invariant()
    def no_page_is_lost_nor_has_one_too_many_owners(self) -> None:
        owners: dict[int, int] = dict.fromkeys(self.pool.prefixes.least_recently_used(), 1)
        for held in self.held:
            for page in held.cache.numbers.tolist():
                owners[page] = owners.get(page, 0) + 1
        found = {page: count for page, count in enumerate(self.pool._num_owners) if count}
        assert found == owners
        assert sorted([*self.pool._free, *owners]) == list(range(self.pool.pages.num_pages))
        assert self.pool.pages.num_pages <= self.most_pages
        assert self.pool.num_used == len(owners)


Pooled.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestPooled = Pooled.TestCase


def test_a_full_pool_says_what_there_is_and_stays_as_it_was() -> None:
    pool = KVPool(CONFIG, PAGE_BYTES * 3)
    first, other = KVCache(CONFIG, pool=pool), KVCache(CONFIG, pool=pool)
    feed(first, (1,) * 100)
    feed(other, (2,) * 60)
    message = rf"^KV cache: 2 more pages of {PAGE} positions; 0 of 3 can be had\. Wait until a sequence ends, or give"
    with pytest.raises(PoolFull, match=message):
        other.reserve(100)
    assert (other.length, other.capacity, pool.num_used) == (60, PAGE, 3)
    first.release()
    other.reserve(100)
    assert pool.num_used == 3
    check(other, (2,) * 60)


def test_what_was_published_outlives_its_sequence_and_the_least_recently_used_goes_first() -> None:
    pool = KVPool(CONFIG, PAGE_BYTES * 4)
    texts = [(token,) * (2 * PAGE + 1) for token in range(2)]
    for text in texts:
        cache = KVCache(CONFIG, pool=pool)
        feed(cache, text[:-1])
        cache.publish(text[:-1])
        cache.release()
    assert (pool.num_used, pool.num_kept) == (4, 4)
    again = KVCache(CONFIG, pool=pool)
    assert again.adopt(texts[0]) == 2 * PAGE  # the first text is now the one that was used last
    check(again, texts[0][:-1])
    again.release()
    newcomer = KVCache(CONFIG, pool=pool)
    feed(newcomer, (3,) * (2 * PAGE))
    assert KVCache(CONFIG, pool=pool).adopt(texts[1]) == 0
    assert KVCache(CONFIG, pool=pool).adopt(texts[0]) == 2 * PAGE


def test_of_a_text_the_last_pages_go_first() -> None:
    pool, text = KVPool(CONFIG, PAGE_BYTES * 3), (1,) * (3 * PAGE)
    cache = KVCache(CONFIG, pool=pool)
    feed(cache, text)
    cache.publish(text)
    cache.release()
    other = KVCache(CONFIG, 1, pool=pool)
    assert KVCache(CONFIG, pool=pool).adopt((*text, 0)) == 2 * PAGE
    assert other.capacity == PAGE


def test_two_that_evaluated_the_same_beginning_have_it_once() -> None:
    pool = KVPool(CONFIG)
    text = (1,) * (2 * PAGE + 10)
    caches = [KVCache(CONFIG, pool=pool) for _ in range(2)]
    for cache in caches:
        feed(cache, text)
    assert pool.num_used == 6
    for cache in caches:
        cache.publish(text)
    assert pool.num_used == 4
    assert caches[0].numbers[:2].tolist() == caches[1].numbers[:2].tolist()
    for cache in caches:
        check(cache, text)


def test_where_no_page_is_left_for_a_copy_a_page_is_no_longer_kept() -> None:
    pool = KVPool(CONFIG, PAGE_BYTES)
    cache = KVCache(CONFIG, pool=pool)
    feed(cache, (1,) * PAGE)
    cache.publish((1,) * PAGE)
    cache.truncate(10)
    feed(cache, (1,) * 10 + (2,))
    check(cache, (1,) * 10 + (2,))
    assert (pool.num_used, len(pool.prefixes)) == (1, 0)


def test_models_with_states_share_nothing() -> None:
    fields: dict[str, Any] = LLAMA | {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "block_ff_dim": 8,
        "max_position_embeddings": 256,
    }
    config = describe_values(fields)
    pool = KVPool(config)
    cache = KVCache(config, 2 * PAGE, pool=pool)
    assert cache.states is not None
    cache.length = 2 * PAGE
    cache.publish([1] * 2 * PAGE)
    assert (len(pool.prefixes), KVCache(config, pool=pool).adopt([1] * 2 * PAGE)) == (0, 0)


def cut_to(length: int) -> Callable[[], object]:
    cache = KVCache(CONFIG)
    feed(cache, (1,) * 5)
    return lambda: cache.truncate(length)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: KVPool(CONFIG, PAGE_BYTES - 1),
        rf"^KV cache: {PAGE_BYTES - 1} bytes; a page of {PAGE} positions takes {PAGE_BYTES} of llama in fp32\.",
    ),
    (
        lambda: KVCache(CONFIG, pool=KVPool(describe_values(LLAMA | {"head_dim": 6}))),
        r"^KV cache: a pool of pages \(2, 2, 1, 64, 6\); 2 layers, 1 heads and head size 4",
    ),
    (lambda: KVCache(CONFIG, capacity=10**17), r"^KV cache: no memory for 1\d* positions, shape .* Shorten the prompt"),
    (cut_to(-1), r"^KV cache: truncation to -1 positions; 0 to 5 are there\. Truncate to a length that was reached\.$"),
    (cut_to(6), "^KV cache: truncation to 6 positions; 0 to 5 are there"),
]


@pytest.mark.parametrize(("refused", "message"), REFUSED)
def test_what_pools_and_caches_cannot_do_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        refused()


def test_a_dtype_of_half_the_bytes_needs_half_the_budget() -> None:
    assert KVPool(CONFIG, PAGE_BYTES - 1, "fp16").most_pages == 1


def test_a_cache_that_does_not_fit_into_memory_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(CONFIG)
    feed(cache, (1,) * 64)

    def refuse(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(kv_pool, "zeros", refuse)
    with pytest.raises(
        ModelError, match=r"^KV cache: no memory for 64 positions, shape \(2, 2, 1, 1, 64, 4\) in fp32;"
    ):
        cache.reserve(1)
    assert cache.capacity == 64
    check(cache, (1,) * 64)


# ---- decoders over pages ----


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
    tiny_model: Callable[[str], Any], native: Callable[..., Any], kind: str, dtype: KvDtype
) -> None:
    """Two texts in turns get pages of several arrays in no order; trees and windows cross them."""
    name = "mistral, long window"
    decoder = tiny_model(name).decoder if kind == "numpy" else native(name, "BF16", "dense", kind, 2)
    text = tiny_model(name).text(160)
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
    tiny_model: Callable[[str], Any], native: Callable[..., Any], kind: str
) -> None:
    decoder = tiny_model("llama").decoder if kind == "numpy" else native("llama", "BF16", "dense", kind, 2)
    text = tiny_model("llama").text(150)
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


def test_rounded_caches_differ_from_whole_ones_by_no_more_than_rounding(tiny_model: Callable[[str], Any]) -> None:
    decoder, text = tiny_model("llama").decoder, tiny_model("llama").text(70)
    whole = decoder.forward(text, KVCache(decoder.config))
    for dtype, most in (("bf16", 2**-5), ("fp16", 2**-8)):
        rounded = decoder.forward(text, KVCache(decoder.config, dtype=dtype))
        assert 0 < np.abs(rounded - whole).max() < most * np.abs(whole).max()
