import numpy as np
import pytest

from mxconv.arch.families.registry import describe_values
from mxconv.engine import kv_pages
from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError

CONFIG = describe_values(
    {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 4,
    }
)
rng = np.random.default_rng(4)


def append(cache: KVCache, num_tokens: int) -> np.ndarray:
    """Random keys for every layer; values are their negatives."""
    keys = rng.standard_normal((CONFIG.num_hidden_layers, num_tokens, 2, 4), np.float32)
    cache.reserve(num_tokens)
    for layer in range(CONFIG.num_hidden_layers):
        cache.write(layer, keys[layer], -keys[layer])
    cache.advance(num_tokens)
    return keys


def test_what_is_written_is_read_back_while_the_cache_grows() -> None:
    cache = KVCache(CONFIG, capacity=1)
    written = np.concatenate([append(cache, num_tokens) for num_tokens in (1, 1, 3, 20, 1)], axis=1)
    assert (cache.length, cache.capacity) == (26, 64)
    for layer in range(2):
        keys, values = cache.read(layer, range(2, 26))
        assert (keys == written[layer, 2:26].transpose(1, 0, 2)).all()
        assert (values == -keys).all()


def test_tokens_behind_the_truncated_length_are_overwritten() -> None:
    cache = KVCache(CONFIG)
    kept = append(cache, 5)
    append(cache, 4)
    cache.truncate(5)
    new = append(cache, 2)
    keys, _ = cache.read(0, range(cache.length))
    assert (keys == np.concatenate([kept[0], new[0]]).transpose(1, 0, 2)).all()


def test_writing_without_advancing_changes_no_length() -> None:
    cache = KVCache(CONFIG)
    cache.reserve(3)
    cache.write(0, np.ones((3, 2, 4), np.float32), np.ones((3, 2, 4), np.float32))
    assert cache.length == 0


@pytest.mark.parametrize("length", [-1, 6])
def test_truncation_to_a_length_that_was_never_reached_is_an_error(length: int) -> None:
    cache = KVCache(CONFIG)
    append(cache, 5)
    message = (
        rf"^KV cache: truncation to {length} positions; 0 to 5 are there\. Truncate to a length that was reached\.$"
    )
    with pytest.raises(ModelError, match=message):
        cache.truncate(length)


def test_a_cache_that_does_not_fit_into_memory_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"^KV cache: no memory for 1\d* positions, shape .* Shorten the prompt"):
        KVCache(CONFIG, capacity=10**17)


def test_a_cache_that_cannot_grow_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KVCache(CONFIG)
    written = append(cache, 4)

    def refuse(shape: tuple[int, ...]) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(kv_pages, "float32_zeros", refuse)
    append(cache, 60)
    with pytest.raises(
        ModelError, match=r"^KV cache: no memory for 64 positions, shape \(2, 2, 2, 1, 64, 4\) in fp32;"
    ):
        cache.reserve(1)
    assert (cache.length, cache.capacity) == (64, 64)
    assert (cache.read(0, range(4))[0] == written[0].transpose(1, 0, 2)).all()
