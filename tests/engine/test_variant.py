"""Variants of a decoder, NumPy and native: against transformers, against each other, and beside their original.

Rows of variants against their paths alone, by every kernel: test_row_invariance.py.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_models import native_copy, with_format
from row_invariance import assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.codecs.float16 import FP16
from mxconv.engine.attention_window import RetrievedPages, SinkWindow
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import KV_DTYPES, PAGE, KvDtype
from mxconv.engine.matrices import Matrices
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

NUM_TOKENS = 100
ARCHITECTURES = ("llama, biases", "mistral, window", "mistral, long window", "qwen3, biases and window")
LEFT_OUT = ({1}, {0, 2})  # of three layers
SINK_WINDOWS = (SinkWindow(4, 16), SinkWindow(0, 3), SinkWindow(1, 1), SinkWindow(70, 20))
LENGTH = 700  # eleven pages
RETRIEVED = (RetrievedPages(4, 64, 2), RetrievedPages(0, 100, 1), RetrievedPages(70, 130, 3))
# patterns that leave nothing out of NUM_TOKENS, and of the 300 that pages need
WHOLE = (SinkWindow(0, 100), SinkWindow(99, 1), SinkWindow(60, 40), SinkWindow(1 << 62, 1))
WHOLE_PAGES = (
    RetrievedPages(0, 64, 4),
    RetrievedPages(300, 64, 1),
    RetrievedPages(1 << 62, 64, 1),
    RetrievedPages(0, 250, 1),
)
IMPLEMENTATIONS = native_names()
KINDS = ["numpy", *IMPLEMENTATIONS[:1]]

needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


def decoder_of(tiny: Any, kind: str, num_threads: int = 2) -> Decoder:
    """By NumPy, or by native kernels, in F16; with room for more positions than the tiny models have."""
    config, weights = replace(tiny.config, max_position_embeddings=1024), with_format(tiny.weights, FP16)
    if kind == "numpy":
        return Decoder(config, weights, kind)
    return native_copy(config, weights, Matrices(choose_engine(kind, num_threads)))


def without(decoder: Decoder, left_out: set[int], sink_window: SinkWindow | None = None) -> Decoder:
    layers = [layer for layer in decoder.layers if layer.index not in left_out]
    return decoder.variant(sink_window, layers=layers)


def logits(decoder: Decoder, ids: list[int]) -> np.ndarray:
    return decoder.forward(ids, KVCache(decoder.config))


def variants(decoder: Decoder) -> dict[str, Decoder]:
    """Some of each kind, and one of both."""
    both = without(decoder, {1}, SinkWindow(3, 9))
    fewer = {f"without {left_out}": without(decoder, left_out) for left_out in LEFT_OUT}
    return fewer | {str(w): decoder.variant(w) for w in SINK_WINDOWS} | {"both": both}


def torch_without(torch_model: Any, left_out: set[int]) -> Any:
    """The transformers model with the outputs of these layers multiplied by nothing: they add zeros."""
    changed = copy.deepcopy(torch_model)
    for index in left_out:
        layer = changed.model.layers[index]
        for output in (layer.self_attn.o_proj, layer.mlp.down_proj):
            for parameter in output.parameters():
                parameter.data.zero_()
    return changed


def masked(torch_model: Any, pattern: SinkWindow, own_windows: tuple[int | None, ...]) -> Any:
    """The transformers model, each layer of which gets a mask written down here."""
    torch = pytest.importorskip("torch")
    changed = copy.deepcopy(torch_model)
    queries, keys = torch.arange(NUM_TOKENS)[:, None], torch.arange(NUM_TOKENS)[None]
    for layer, own_window in zip(changed.model.layers, own_windows, strict=True):
        age = queries - keys
        seen = (age >= 0) & (age < (own_window or NUM_TOKENS)) & ((keys < pattern.sink) | (age < pattern.window))
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[None, None]

        def give(module: Any, arguments: Any, keywords: Any, mask: Any = mask) -> Any:
            assert "attention_mask" in keywords
            return arguments, keywords | {"attention_mask": mask}

        layer.register_forward_pre_hook(give, with_kwargs=True)
    return changed


def assert_as_in_torch(decoder: Decoder, torch_model: Any, ids: list[int]) -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        theirs = torch_model(torch.tensor([ids])).logits[0].numpy()
    ours = logits(decoder, ids)
    assert np.abs(ours - theirs).max() <= 1e-3
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


@pytest.mark.parametrize("number", range(len(LEFT_OUT)))
def test_a_decoder_of_fewer_layers_is_the_model_whose_other_layers_give_nothing(
    tiny_model: Callable[[str], Any], number: int
) -> None:
    tiny, left_out = tiny_model(ARCHITECTURES[number]), LEFT_OUT[number]
    torch_model = torch_without(tiny.torch_model, left_out)
    assert_as_in_torch(without(tiny.decoder, left_out), torch_model, tiny.text(NUM_TOKENS))


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("number", range(len(SINK_WINDOWS)), ids=map(str, SINK_WINDOWS))
def test_sparse_attention_is_that_of_the_model_with_such_a_mask(
    tiny_model: Callable[[str], Any], number: int, turn: int
) -> None:
    tiny, pattern = tiny_model(ARCHITECTURES[(number + turn) % len(ARCHITECTURES)]), SINK_WINDOWS[number]
    torch_model = masked(tiny.torch_model, pattern, tiny.config.windows)
    assert_as_in_torch(tiny.decoder.variant(pattern), torch_model, tiny.text(NUM_TOKENS))


@needs_native
@pytest.mark.parametrize("number", range(len(ARCHITECTURES)), ids=ARCHITECTURES)
def test_native_variants_are_those_of_numpy_up_to_float32_sums(tiny_model: Callable[[str], Any], number: int) -> None:
    """Native implementations take turns."""
    tiny = tiny_model(ARCHITECTURES[number])
    ids, expected = tiny.text(NUM_TOKENS), variants(decoder_of(tiny, "numpy"))
    for name, found in variants(decoder_of(tiny, IMPLEMENTATIONS[number % len(IMPLEMENTATIONS)])).items():
        wanted = logits(expected[name], ids)
        np.testing.assert_allclose(logits(found, ids), wanted, atol=2e-4 * float(np.abs(wanted).max()), err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_out_nothing_changes_no_bit(tiny_model: Callable[[str], Any], kind: str) -> None:
    for name, count, patterns in (
        ("mistral, long window", NUM_TOKENS, (None, *WHOLE)),
        ("qwen3, biases and window", 300, WHOLE_PAGES),
    ):
        tiny = tiny_model(name)
        decoder, ids = decoder_of(tiny, kind), tiny.text(count)
        expected = logits(decoder, ids)
        for pattern in patterns:
            assert_same_bits(logits(decoder.variant(pattern), ids), expected, str(pattern))
        assert_same_bits(logits(decoder.variant(SinkWindow(0, 1)).variant(), ids), expected, "a variant of one")


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_variant_has_drafted_on_its_cache_the_target_computes_what_it_always_did(
    tiny_model: Callable[[str], Any], kind: str
) -> None:
    tiny = tiny_model("llama, biases")
    target, ids = decoder_of(tiny, kind), tiny.text(60)
    expected = logits(target, ids)
    for name, draft in variants(target).items():
        cache = KVCache(target.config, 8)
        rows = []
        while cache.length < len(ids):
            length = cache.length
            for token in tiny.text(12)[length % 7 : length % 7 + 4]:
                draft.forward([token], cache)
            cache.truncate(length)
            rows.append(target.forward(ids[length : length + 17], cache))
        assert_same_bits(np.concatenate(rows), expected, name)


@pytest.mark.parametrize("pattern", RETRIEVED, ids=str)
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


@needs_native
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("name", ["llama, biases", "llama, one KV head", "qwen3, biases and window"])
def test_native_kernels_retrieve_what_numpy_does(tiny_model: Callable[[str], Any], name: str, dtype: KvDtype) -> None:
    tiny, ids = tiny_model(name), tiny_model(name).text(LENGTH)
    decoders = [decoder_of(tiny, kind) for kind in ("numpy", IMPLEMENTATIONS[0])]
    whole = decoders[1].forward(ids, KVCache(tiny.config, dtype=dtype))
    for pattern in RETRIEVED:
        expected, found = (one.variant(pattern).forward(ids, KVCache(tiny.config, dtype=dtype)) for one in decoders)
        differs = np.abs(found - expected).max(axis=1) > 2e-3 * np.abs(expected).max()  # bounds of pages may be near
        assert differs.mean() < 0.01, f"{pattern}: {differs.sum()} rows"
        assert (np.abs(found - whole).max(axis=1)[-300:] > 0.01 * np.abs(whole).max()).any(), "nothing was left out"


@pytest.mark.parametrize("kind", ["numpy", *IMPLEMENTATIONS])
def test_a_rows_pages_depend_on_its_path_alone(tiny_model: Callable[[str], Any], kind: str) -> None:
    tiny, is_numpy = tiny_model("llama, biases"), kind == "numpy"
    ids = tiny.text(300 if is_numpy else LENGTH)
    for pattern in RETRIEVED[: 1 if is_numpy else 3]:
        decoder, alone = (decoder_of(tiny, kind, threads).variant(pattern) for threads in (3, 1))
        expected = logits(alone, ids)
        for widths in ([300, 64, 1, 130, 3, 90], [33]):
            assert_same_bits(logits_in_steps(decoder, ids, widths), expected, f"{pattern}, in steps of {widths}")
        parts = logits_after_rollback(decoder, ids, 251, ids[40:129])
        assert_same_bits(np.concatenate(parts), expected, f"{pattern}, after others")


@needs_native
def test_a_tree_in_one_call_retrieves_as_passes_do(tiny_model: Callable[[str], Any]) -> None:
    tiny = tiny_model("llama, biases")
    draft, ids = decoder_of(tiny, IMPLEMENTATIONS[0]).variant(RETRIEVED[0]), tiny.text(315)
    cache = KVCache(draft.config)
    draft.forward(ids[:-1], cache)
    grown = draft.grow(ids[-1:], cache, draft.config.vocab_size, TreeLimits(12, [0.0] * 12, 0.0, 0.0, 1.0, 1))
    assert grown is not None and len(grown.tokens) == 12
    assert logits(draft, [*ids, *grown.tokens[:-1]])[314:].argmax(axis=1).tolist() == grown.tokens


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: SinkWindow(-1, 4), "attention sink: -1 positions; at least 0 is required."),
    (lambda: SinkWindow(4, 0), "attention window: 0 positions; at least 1 is required."),
    (lambda: RetrievedPages(0, 63, 1), "attention window: 63 positions; at least 64 is required."),
    (lambda: RetrievedPages(0, 64, 0), "attention pages: 0 pages; at least 1 is required."),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_a_pattern_of_numbers_that_make_no_sense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        make()
    assert str(caught.value) == message


def test_a_model_that_attends_to_windows_alone_has_no_pages_to_retrieve(tiny_model: Callable[[str], Any]) -> None:
    message = "draft: pages are to be retrieved, and no layer of mistral attends to keys of every position"
    with pytest.raises(ModelError, match=message):
        tiny_model("mistral, window").decoder.variant(RETRIEVED[0], name="draft")
