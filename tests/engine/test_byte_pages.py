"""Caches in bytes: what drafts read of whole pages, by NumPy and by native kernels, and how exact it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_models import native_copy, with_format
from row_invariance import assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.arrays import F32, U8
from mxconv.codecs.float16 import FP16
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pages import KV_DTYPES, PAGE, KvDtype
from mxconv.engine.matrices import Matrices
from mxconv.engine.page_copies import BytePages, read_in_bytes
from mxconv.engine.sight import SinkWindow
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

LENGTH = 300  # four pages and a part of one
IN_BYTES = SinkWindow(0, 1 << 31, in_bytes=True)
IMPLEMENTATIONS = native_names()
NEEDS_NATIVE = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")
ARCHITECTURES = ("llama, biases", "llama, one KV head", "qwen3, biases and window")  # heads of several sizes


def of_kind(oracle: Any, kind: str, num_threads: int = 2) -> Decoder:
    config, weights = replace(oracle.decoder.config, max_position_embeddings=1024), with_format(oracle.weights, FP16)
    if kind == "numpy":
        return Decoder(config, weights, kind)
    return native_copy(config, weights, Matrices(choose_engine(kind, num_threads)))


def unpacked(pages: U8, size: int) -> tuple[F32, F32]:
    """Keys and values, (heads, positions, size), of one layer's pages, as `BytePages` describes them."""
    _, heads, count, _ = pages.shape
    columns = -(-size // 64) * 64
    area = PAGE * columns
    codes, floats = pages[..., -area:], np.ascontiguousarray(pages[..., :-area]).view(np.float32)
    keys = codes[0].reshape(heads, count, columns // 4, PAGE, 4).transpose(0, 1, 3, 2, 4)
    values = codes[1].view(np.int8).reshape(heads, count, PAGE // 4, columns, 4)
    steps, least, scales = floats[0, ..., :columns], floats[0, ..., columns : 2 * columns], floats[1, ..., :PAGE]
    read_keys = least[:, :, None] + keys.reshape(heads, count, PAGE, columns) * steps[:, :, None]
    by_position = values.transpose(0, 1, 2, 4, 3).reshape(heads, count, PAGE, columns)
    read_values = by_position * scales[..., None]
    shape = heads, count * PAGE, columns
    return read_keys.reshape(shape)[..., :size], read_values.reshape(shape)[..., :size]


def test_whole_pages_are_half_a_step_away_at_most_and_the_rest_is_exact() -> None:
    generator = np.random.default_rng(5)
    keys, values = generator.standard_normal((2, 2, 150, 6), np.float32)
    keys[..., 1] += 50  # a column far from zero costs the others nothing
    keys[..., 2], values[0, 7] = 3, 0
    read_keys, read_values = read_in_bytes(keys, values)
    for start in (0, PAGE):
        page = keys[:, start : start + PAGE]
        half = (page.max(axis=1) - page.min(axis=1)) / 254
        assert (np.abs(read_keys[:, start : start + PAGE] - page) <= half[:, None] + 1e-5).all()
    half = np.abs(values).max(axis=2, keepdims=True) / 254
    assert (np.abs(read_values - values) <= half * 1.001).all()
    assert (read_keys[:, 128:] == keys[:, 128:]).all() and (read_values[:, 128:] == values[:, 128:]).all()
    assert (read_keys[:, :128] != keys[:, :128]).mean() > 0.5 and (read_keys[..., 2] == 3).all()


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_native_copies_are_those_of_numpy(tiny_oracle: Callable[[str], Any], architecture: str, dtype: KvDtype) -> None:
    oracle = tiny_oracle(architecture)
    draft, ids = of_kind(oracle, IMPLEMENTATIONS[0]).variant(sink_window=IN_BYTES), oracle.text(LENGTH)
    cache = KVCache(draft.config, dtype=dtype)
    for start, others in ((0, ids[:40]), (90, ids[40:60]), (131, ids[:70])):  # what was taken back is copied anew
        draft.forward(ids[cache.length : start + 50], cache)
        draft.forward(others, cache)
        cache.truncate(start + 50)
    draft.forward(ids[cache.length :], cache)
    copies = cache.copies(BytePages)
    assert copies.num_pages == LENGTH // PAGE
    kept = copies.array(cache.pool.slabs.page_shape, 0)[..., : copies.num_pages, :]
    for layer, keys, values in zip(draft.layers, *cache.arrays, strict=True):
        if layer.sink_window is not None:
            whole = copies.num_pages * PAGE
            found = unpacked(kept[layer.index], keys.shape[-1])
            for each, expected in zip(found, read_in_bytes(keys[:, :whole], values[:, :whole]), strict=True):
                np.testing.assert_array_equal(each, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_native_attention_reads_what_numpy_does(
    tiny_oracle: Callable[[str], Any], architecture: str, name: str
) -> None:
    oracle, ids = tiny_oracle(architecture), tiny_oracle(architecture).text(LENGTH)
    whole, expected = (
        decoder.forward(ids, KVCache(decoder.config))
        for decoder in (of_kind(oracle, "numpy"), of_kind(oracle, "numpy").variant(sink_window=IN_BYTES))
    )
    found = of_kind(oracle, name).variant(sink_window=IN_BYTES).forward(ids, KVCache(oracle.decoder.config))
    errors = [np.abs(each - whole).max(axis=1)[PAGE - 1 :] for each in (expected, found)]
    assert (expected[: PAGE - 1] == whole[: PAGE - 1]).all() and errors[0].min() > 0
    assert errors[0].mean() < 0.03 * np.abs(whole).max()
    assert errors[1].mean() < 2.5 * errors[0].mean()  # queries and shares are rounded too
    exact = of_kind(oracle, name).forward(ids, KVCache(oracle.decoder.config))
    assert (found != exact).any(axis=1).nonzero()[0].tolist() == list(range(PAGE - 1, LENGTH))


@pytest.mark.parametrize("name", IMPLEMENTATIONS[:1])
def test_the_bits_of_a_row_follow_from_its_path(tiny_oracle: Callable[[str], Any], name: str) -> None:
    oracle = tiny_oracle("llama, biases")
    ids = oracle.text(LENGTH)
    decoder, alone = (of_kind(oracle, name, threads).variant(sink_window=IN_BYTES) for threads in (3, 1))
    expected = alone.forward(ids, KVCache(alone.config))
    for widths in ([100, 64, 1, 130, 3], [33]):
        assert_same_bits(logits_in_steps(decoder, ids, widths), expected, f"in steps of {widths}")
    assert_same_bits(np.concatenate(logits_after_rollback(decoder, ids, 187, ids[40:129])), expected, "after others")


def test_a_model_of_windows_alone_is_refused(tiny_oracle: Callable[[str], Any]) -> None:
    message = "draft: pages are to be retrieved or copied, and no layer of mistral attends to keys of every position"
    with pytest.raises(ModelError, match=message):
        tiny_oracle("mistral, window").decoder.variant(sink_window=IN_BYTES, name="draft")
