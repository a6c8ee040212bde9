"""Variants of a decoder, NumPy and native: against transformers, against each other, and beside their original.

Rows of variants against their paths alone, by every kernel: test_sequence_rows.py.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native_models import (
    DRAFTS,
    assert_rounded_alike,
    convert,
    native_copy,
    rounding_as_native,
    rounding_nothing,
    with_format,
)
from row_invariance import assert_same_bits

from mxconv.codecs.float16 import BF16, FP16
from mxconv.engine.attention_window import SinkWindow
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.matrix import DenseMatrix

NUM_TOKENS = 100
ARCHITECTURES = ("llama, biases", "mistral, window", "mistral, long window", "qwen3, biases and window")
LEFT_OUT = ({1}, {0, 2})  # of three layers
SINK_WINDOWS = (SinkWindow(4, 16), SinkWindow(0, 3), SinkWindow(1, 1), SinkWindow(70, 20))
IMPLEMENTATIONS = native_names()
KINDS = ["numpy", *IMPLEMENTATIONS[:1]]

needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


def without(decoder: Decoder, left_out: set[int], sink_window: SinkWindow | None = None) -> Decoder:
    layers = [layer for layer in decoder.layers if layer.index not in left_out]
    return decoder.variant(sink_window, layers=layers)


def logits(decoder: Decoder, ids: list[int]) -> np.ndarray:
    return decoder.forward(ids, KVCache(decoder.config))


def matrices_of(turn: int) -> Matrices:
    """Native implementations take turns; on two threads."""
    return Matrices(choose_engine(IMPLEMENTATIONS[turn % len(IMPLEMENTATIONS)], 2))


def decoder_of(oracle: Any, kind: str) -> Decoder:
    """By NumPy, or by native kernels."""
    if kind == "numpy":
        return oracle.decoder
    return native_copy(oracle.decoder.config, oracle.weights, Matrices(choose_engine(kind, 2)))


def variants(decoder: Decoder) -> dict[str, Decoder]:
    """Some of each kind, and one of both."""
    both = without(decoder, {1}, SinkWindow(3, 9))
    fewer = {f"without {left_out}": without(decoder, left_out) for left_out in LEFT_OUT}
    return fewer | {str(w): decoder.variant(pattern=w) for w in SINK_WINDOWS} | {"both": both}


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
    tiny_oracle: Callable[[str], Any], number: int
) -> None:
    oracle, left_out = tiny_oracle(ARCHITECTURES[number]), LEFT_OUT[number]
    torch_model = torch_without(oracle.torch_model, left_out)
    assert_as_in_torch(without(oracle.decoder, left_out), torch_model, oracle.text(NUM_TOKENS))


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("number", range(len(SINK_WINDOWS)), ids=map(str, SINK_WINDOWS))
def test_sparse_attention_is_that_of_the_model_with_such_a_mask(
    tiny_oracle: Callable[[str], Any], number: int, turn: int
) -> None:
    oracle, pattern = tiny_oracle(ARCHITECTURES[(number + turn) % len(ARCHITECTURES)]), SINK_WINDOWS[number]
    torch_model = masked(oracle.torch_model, pattern, oracle.decoder.config.windows)
    assert_as_in_torch(oracle.decoder.variant(pattern=pattern), torch_model, oracle.text(NUM_TOKENS))


@needs_native
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_native_variants_in_f16_are_those_of_numpy_up_to_float32_sums(
    tiny_oracle: Callable[[str], Any], architecture: str
) -> None:
    oracle = tiny_oracle(architecture)
    weights = with_format(oracle.weights, FP16)
    config, ids = oracle.decoder.config, oracle.text(NUM_TOKENS)
    expected = variants(Decoder(config, weights, "numpy"))
    for name, found in variants(native_copy(config, weights, matrices_of(ARCHITECTURES.index(architecture)))).items():
        wanted = logits(expected[name], ids)
        np.testing.assert_allclose(logits(found, ids), wanted, atol=2e-4 * float(np.abs(wanted).max()), err_msg=name)


@needs_native
@pytest.mark.parametrize("form", DRAFTS)
def test_native_variants_of_drafts_are_near_those_of_numpy(tiny_oracle: Callable[[str], Any], form: str) -> None:
    """As of whole drafts: a last bit in a float32 sum may tip a rounding to int8."""
    oracle, matrices = tiny_oracle("qwen3, biases and window"), matrices_of(list(DRAFTS).index(form) + 2)
    weights = with_format(oracle.weights, BF16)
    config, ids = oracle.decoder.config, oracle.text(60)
    draft = convert(weights, Matrices(), DRAFTS[form])
    expected, unrounded = (
        variants(Decoder(config, each, "numpy")) for each in (rounding_as_native(draft), rounding_nothing(draft))
    )
    for name, found in variants(native_copy(config, weights, matrices, DRAFTS[form])).items():
        assert_rounded_alike(*(logits(each, ids) for each in (found, expected[name], unrounded[name])), name)


@needs_native
@pytest.mark.parametrize("number", range(max(len(IMPLEMENTATIONS), len(DRAFTS))))
def test_a_row_that_is_not_finite_is_marked_in_its_layer_and_spares_other_rows_and_layers(
    tiny_oracle: Callable[[str], Any], number: int
) -> None:
    """The embedding of token 7 makes the MLP of layer 0 overflow; no other position attends to it."""
    oracle, matrices, form = tiny_oracle("llama"), matrices_of(number), list(DRAFTS)[number % len(DRAFTS)]
    weights = with_format(oracle.weights, BF16)
    patterns = weights.matrices["model.embed_tokens.weight"].patterns.copy()
    patterns[7, 11] = BF16.encode(np.array([np.inf], np.float32))[0]
    special = {**weights.matrices, "model.embed_tokens.weight": DenseMatrix(patterns, BF16)}
    ids = [token for token in oracle.text(NUM_TOKENS) if token != 7]
    sound, broken = (
        native_copy(oracle.decoder.config, ModelWeights(tensors, weights.vectors), matrices, DRAFTS[form])
        for tensors in (weights.matrices, special)
    )
    for left_out in (set[int](), {1, 2}):
        draft, whole = (without(each, left_out, SinkWindow(0, 1)) for each in (broken, sound))
        expected = logits(whole, ids)
        assert np.isfinite(expected).all()
        assert np.isnan(logits(draft, [*ids[:3], 7])[3]).all()
        assert_same_bits(logits(draft, ids), expected, str(left_out))  # in the same buffers


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_out_nothing_changes_no_bit(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    oracle = tiny_oracle("mistral, long window")
    decoder, ids = decoder_of(oracle, kind), oracle.text(NUM_TOKENS)
    expected = logits(decoder, ids)
    for variant in (
        decoder.variant(),
        decoder.variant(pattern=SinkWindow(0, NUM_TOKENS)),
        decoder.variant(pattern=SinkWindow(NUM_TOKENS - 1, 1)),
        decoder.variant(pattern=SinkWindow(60, 40)),
        decoder.variant(pattern=SinkWindow(1 << 62, 1)),
        decoder.variant(SinkWindow(0, 1)).variant(),
    ):
        assert_same_bits(logits(variant, ids), expected, "everything")


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_variant_has_drafted_on_its_cache_the_target_computes_what_it_always_did(
    tiny_oracle: Callable[[str], Any], kind: str
) -> None:
    oracle = tiny_oracle("llama, biases")
    target, ids = decoder_of(oracle, kind), oracle.text(60)
    expected = logits(target, ids)
    for name, draft in variants(target).items():
        cache = KVCache(target.config, 8)
        rows = []
        while cache.length < len(ids):
            length = cache.length
            for token in oracle.text(12)[length % 7 : length % 7 + 4]:
                draft.forward([token], cache)
            cache.truncate(length)
            rows.append(target.forward(ids[length : length + 17], cache))
        assert_same_bits(np.concatenate(rows), expected, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_is_left_out_writes_nothing_to_the_cache(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    oracle = tiny_oracle("llama")
    decoder = decoder_of(oracle, kind)
    cache = KVCache(decoder.config, 16)
    without(decoder, {1}).forward(oracle.text(10), cache)
    assert cache.length == 10
    for array in cache.arrays:
        assert not array[1].any()
        assert array[0, :, :10].all() and array[2, :, :10].all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_variant_holds_the_tensors_of_its_original(tiny_oracle: Callable[[str], Any], kind: str) -> None:
    decoder = decoder_of(tiny_oracle("qwen3, biases and window"), kind)
    made = decoder.variant(SinkWindow(1, 2), name="draft")
    assert type(made) is type(decoder)
    assert (made.name, decoder.name != "draft") == ("draft", True)
    for name in ("config", "embedding", "norm", "output", "layer_inputs"):
        assert getattr(made, name) is getattr(decoder, name)
    for mine, theirs in zip(made.layers, decoder.layers, strict=True):
        for name in ("before_mixer", "attention", "before_mlp", "mlp"):
            assert getattr(mine, name) is getattr(theirs, name)
    assert [layer.pattern for layer in decoder.layers] == [None] * 3


def test_a_pattern_of_numbers_that_make_no_sense_is_refused(tiny_oracle: Callable[[str], Any]) -> None:
    for sink, window, message in ((-1, 4, "sink: -1 positions; at least 0"), (4, 0, "window: 0 positions; at least 1")):
        with pytest.raises(ModelError, match=rf"^attention {message} is required\.$"):
            SinkWindow(sink, window)
    for name in ("sink", "window") if IMPLEMENTATIONS else ():  # and by kernels
        wrong = SinkWindow(1, 1)
        object.__setattr__(wrong, name, -1)
        with pytest.raises(ValueError, match="sink and recent must be 0 or more"):
            decoder_of(tiny_oracle("llama"), IMPLEMENTATIONS[0]).variant(pattern=wrong)
