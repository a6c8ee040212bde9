"""Every family on the native decoder: its logits against NumPy's, the bits of its rows, and its cache."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from native_models import DRAFTS, TARGETS, Bf16Inputs, convert, native_copy, relative_error, with_format
from row_invariance import assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.model.cache import KVCache
from mxconv.model.decoder import Decoder
from mxconv.model.expert_stack import ExpertStack
from mxconv.model.forest import SequenceRows
from mxconv.model.matrices import Matrices
from mxconv.model.mixture import Mixture
from mxconv.model.native_parts import missing_parts
from mxconv.model.skipped import Skipped
from mxconv.model.tree import Tree
from mxconv.model.weights import Weights

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
IMPLEMENTATIONS = native_names()
LACKING = {
    "olmoe, clipped": ("clipped heads",),
    "gpt_oss": ("attention sinks", "clamped experts with biases", "experts of a size that is no multiple of 16"),
    "llama4": ("attention in chunks", "experts whose input is scaled", "experts of a size that is no multiple of 16"),
    "gemma4, with experts": (
        "norms inside mixtures, or behind them",
        "routers with norms and weights of their own",
        "experts of a size that is no multiple of 16",
    ),
    "deepseek_v3": ("latent attention",),
    "deepseek_v3, queries of full rank": ("latent attention",),
}
LACKING["llama4, of several towers"] = LACKING["llama4"]
NAMES = [name for name, own in checkpoints.FAMILIES.items() if own["model_type"] not in checkpoints.RECURRENT]
LENGTH = 70  # more than a slice of a pass, and more than a chunk of attention

pytestmark = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


@dataclass(frozen=True)
class Model:
    """A family's tiny checkpoint, and what NumPy makes of it."""

    family: Any

    @property
    def ids(self) -> list[int]:
        return list(self.family.token_ids[:LENGTH])

    def weights(self, float_format: FloatFormat) -> Weights:
        return with_format(self.family.weights, float_format)

    def native(self, float_format: FloatFormat, kernel: str, num_threads: int = 2, form: str = "dense") -> Decoder:
        matrices = Matrices(choose_engine(kernel, num_threads))
        made = native_copy(self.family.config, self.weights(float_format), matrices, (TARGETS | DRAFTS)[form])
        assert type(made).__name__ == "NativeDecoder"
        return made

    def numpy(self, weights: Weights) -> np.ndarray:
        decoder = Decoder(self.family.config, weights, "numpy")
        return decoder.forward(self.ids, KVCache(self.family.config))

    @cached_property
    def in_f16(self) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Logits, and the cache behind them."""
        cache = KVCache(self.family.config, LENGTH)
        decoder = Decoder(self.family.config, self.weights(FP16), "numpy")
        return decoder.forward(self.ids, cache), cache.arrays

    @cached_property
    def in_bf16(self) -> np.ndarray:
        weights = self.weights(BF16)
        matrices = {name: Bf16Inputs(each) for name, each in weights.matrices.items()}
        return self.numpy(Weights(matrices, weights.vectors, {n: _rounding(s) for n, s in weights.stacks.items()}))


def _rounding(stack: ExpertStack) -> ExpertStack:
    return ExpertStack(stack.shape, lambda expert: Bf16Inputs(stack.matrix(expert)))


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Model:
    """Every family in turn whose parts the native decoder has."""
    family = family_of(request.param)
    if LACKING.get(request.param):
        pytest.skip("NumPy runs its layers")
    return Model(family)


@pytest.mark.parametrize("name", NAMES)
def test_the_native_decoder_lacks_these_parts_and_no_others(family_of: Callable[[str], Any], name: str) -> None:
    assert missing_parts(family_of(name).config) == LACKING.get(name, ())


def test_f16_logits_and_caches_are_those_of_numpy_up_to_float32_sums(model: Model) -> None:
    expected, arrays = model.in_f16
    for kernel in IMPLEMENTATIONS:
        cache = KVCache(model.family.config, LENGTH)
        found = model.native(FP16, kernel).forward(model.ids, cache)
        np.testing.assert_allclose(found, expected, atol=2e-4 * float(np.abs(expected).max()), err_msg=kernel)
        assert (found.argmax(-1) == expected.argmax(-1)).all()
        for one, other in zip(cache.arrays, arrays, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-4 * float(np.abs(other).max()), err_msg=kernel)


def test_bf16_logits_are_those_of_numpy_with_rounded_activations(model: Model) -> None:
    for kernel in IMPLEMENTATIONS:
        found = model.native(BF16, kernel).forward(model.ids, KVCache(model.family.config))
        assert relative_error(found, model.in_bf16) < 2**-8, kernel


@pytest.mark.parametrize("form", DRAFTS)
def test_drafts_are_near_those_of_numpy(model: Model, form: str) -> None:
    weights = convert(model.weights(BF16), Matrices(), DRAFTS[form], model.family.config.looked_up)
    expected = model.numpy(weights)
    found = model.native(BF16, IMPLEMENTATIONS[0], form=form).forward(model.ids, KVCache(model.family.config))
    if any(isinstance(layer.mlp, Mixture) for layer in model.family.config.layers):
        # routers in 16 bits round what they take in, and a row of random weights may then choose other experts
        errors = [relative_error(one, other) for one, other in zip(found, expected, strict=True)]
        assert np.median(errors) < 2**-5
    else:
        assert relative_error(found, expected) < 2**-6


def test_a_rows_bits_are_those_of_its_prefix_however_the_text_is_cut_on_any_number_of_threads(model: Model) -> None:
    for kernel in IMPLEMENTATIONS:
        whole = logits_in_steps(model.native(BF16, kernel, 1), model.ids, [1])
        for num_threads, widths in ((1, [3, 5, 8, 16]), (2, [LENGTH]), (3, [33])):
            found = logits_in_steps(model.native(BF16, kernel, num_threads), model.ids, widths)
            assert_same_bits(found, whole, f"{kernel}, {num_threads} threads, cut at {widths}")
        parts = logits_after_rollback(model.native(BF16, kernel, 1), model.ids, 30, [5, 6, 7, 8])
        assert_same_bits(np.concatenate(parts), whole, f"{kernel}, behind tokens that were taken back")
        rebuilt = model.native(BF16, kernel, 1, "bsfp")
        assert_same_bits(logits_in_steps(rebuilt, model.ids, [LENGTH]), whole, f"{kernel}, BSFP")


def test_a_rows_bits_are_those_of_its_path_in_a_forest(model: Model) -> None:
    decoder, ids, config = model.native(BF16, IMPLEMENTATIONS[0]), model.ids, model.family.config
    cache, other = KVCache(config), KVCache(config)
    decoder.forward(ids[:40], cache)
    decoder.forward(ids[7:20], other)
    tokens, parents = [3, 9, 4, 80, 17, 60], [-1, 0, 0, 1, 2, -1]
    of_tree, beside = decoder.forward_forest(
        [SequenceRows(tokens, cache, Tree(parents)), SequenceRows(ids[20:23], other)]
    )
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path, node = [tokens[node], *path], parents[node]
        alone = decoder.forward([*ids[:40], *path], KVCache(config), last_only=True)
        assert_same_bits(of_tree[row : row + 1], alone, f"row {row} of a tree")
    assert_same_bits(beside, decoder.forward(ids[7:23], KVCache(config))[13:], "another sequence")


@pytest.mark.parametrize("parts", ["a1+m2", "0-3"])
def test_a_draft_without_some_parts_is_that_of_numpy(model: Model, parts: str) -> None:
    config, weights = model.family.config, model.weights(FP16)
    skipped = Skipped.parse(parts, config.num_hidden_layers)
    whole = model.native(FP16, IMPLEMENTATIONS[0])
    found = whole.variant(skipped).forward(model.ids[:9], KVCache(config))
    expected = Decoder(config, weights, "numpy").variant(skipped).forward(model.ids[:9], KVCache(config))
    np.testing.assert_allclose(found, expected, atol=2e-4 * float(np.abs(expected).max()))
