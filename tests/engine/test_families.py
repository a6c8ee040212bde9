"""Every family: its logits against transformers, the native decoder's against NumPy's, the bits of its rows, its
tensors, and what docs/models.md says of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import (
    DRAFTS,
    TARGETS,
    assert_rounded_alike,
    convert,
    native_copy,
    rounding_as_native,
    rounding_nothing,
    with_format,
)
from packed_families import PACKED
from row_invariance import assert_batch_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Mixture, Norm
from mxconv.arch.families.registry import FAMILIES, TOWERS, describe_file
from mxconv.arch.required_tensors import required_tensors
from mxconv.arch.whole_model import HeldTensor, check_whole, faults, fitted, held_tensors
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.gguf.architectures import ARCHITECTURES
from mxconv.kernels.engine import choose_engine, native_names

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
IMPLEMENTATIONS = native_names()
EVERY = list(checkpoints.FAMILIES)
NAMES = [name for name in EVERY if "several towers" not in name]  # whose text alone is computed alike
ROUNDED_CACHES = ["gpt_oss", "olmoe, clipped", "deepseek_v3"]
PROMPT = 64
CUTS = ([80], [2, 3, 5, 8, 33])
LENGTH = 70  # more than a slice of a pass, and more than a chunk of attention
FP32_BUFFERS = ("rotary_emb.inv_freq",)
PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text()

needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


@pytest.fixture(scope="module", params=EVERY)
def family(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Any:
    """Every one in turn."""
    return family_of(request.param)


def test_logits_agree_with_transformers_and_do_not_depend_on_how_the_text_is_cut(family: Any) -> None:
    decoder, ids = family.decoder, family.token_ids
    found = logits_in_steps(decoder, ids, [PROMPT, 1])
    assert found.dtype == np.float32
    assert np.abs(found - family.expected).max() <= 1e-3 * np.abs(family.expected).max()
    assert (found.argmax(-1) == family.expected.argmax(-1)).all()
    for widths in CUTS:
        assert_same_bits(logits_in_steps(decoder, ids, widths), found, f"cut at {widths}")
    parts = logits_after_rollback(decoder, ids, 30, [5, 6, 7, 8])
    assert_same_bits(np.concatenate(parts), found, "after tokens that were taken back")


def test_a_rows_bits_are_those_of_its_path_in_a_batch_by_numpy(family: Any) -> None:
    assert_batch_invariant(family.decoder, family.token_ids, rows=(3, 4))


# ---- the native decoder ----


@dataclass(frozen=True, eq=False)
class Model:
    """A family's tiny checkpoint, and what NumPy makes of it; what is made is kept, and many tests use it."""

    name: str
    family: Any
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def once(self, make: Callable[[], Any], *key: object) -> Any:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def kernel(self, turn: int) -> str:
        """Kernels take turns, from family to family and from test to test."""
        return IMPLEMENTATIONS[(NAMES.index(self.name) + turn) % len(IMPLEMENTATIONS)]

    @property
    def ids(self) -> list[int]:
        return list(self.family.token_ids[:LENGTH])

    def weights(self, float_format: FloatFormat) -> ModelWeights:
        found: ModelWeights = self.once(lambda: with_format(self.family.weights, float_format), float_format)
        return found

    def native(self, float_format: FloatFormat, kernel: str, num_threads: int = 2, form: str = "dense") -> Decoder:
        def make() -> Decoder:
            matrices = Matrices(choose_engine(kernel, num_threads))
            return native_copy(self.family.config, self.weights(float_format), matrices, (TARGETS | DRAFTS)[form])

        made: Decoder = self.once(make, float_format, kernel, num_threads, form)
        assert type(made).__name__ == "NativeDecoder"
        return made

    def numpy(self, weights: ModelWeights) -> np.ndarray:
        decoder = Decoder(self.family.config, weights, "numpy")
        return decoder.forward(self.ids, KVCache(self.family.config))

    @property
    def has_states(self) -> bool:
        return self.family.config.state_sizes is not None

    @cached_property
    def in_f16(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Logits, and the cache after them."""
        cache = KVCache(self.family.config, LENGTH)
        decoder = Decoder(self.family.config, self.weights(FP16), "numpy")
        return decoder.forward(self.ids, cache), held(cache)

    @property
    def hands_on_roundings(self) -> bool:
        """Whether a row may choose other experts where something rounds apart, or hand that on in a state."""
        return self.has_states or any(isinstance(layer.mlp, Mixture) for layer in self.family.config.layers)


def held(cache: KVCache) -> list[np.ndarray]:
    """What a cache holds of anything: keys, values, states and the inputs of rows."""
    states = cache.states
    arrays = [*cache.arrays, *(() if states is None else (states.windows, states.memories, states.inputs))]
    return [array for array in arrays if array.size]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Model:
    """Every family in turn."""
    return Model(request.param, family_of(request.param))


@needs_native
def test_f16_logits_and_caches_are_those_of_numpy_up_to_float32_sums(model: Model) -> None:
    expected, arrays = model.in_f16
    cache = KVCache(model.family.config, LENGTH)
    found = model.native(FP16, model.kernel(0)).forward(model.ids, cache)
    np.testing.assert_allclose(found, expected, atol=2e-4 * float(np.abs(expected).max()))
    for one, other in zip(held(cache), arrays, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4 * float(np.abs(other).max()))


@needs_native
@pytest.mark.parametrize("name", ROUNDED_CACHES)
def test_sinks_clips_and_latent_vectors_go_through_caches_of_16_bits(
    family_of: Callable[[str], Any], name: str
) -> None:
    model = Model(name, family_of(name))
    config, native = model.family.config, model.native(FP16, IMPLEMENTATIONS[0])
    for dtype in ("bf16", "fp16"):
        cache, of_numpy = (KVCache(config, dtype=dtype) for _ in range(2))
        found = native.forward(model.ids, cache)
        expected = Decoder(config, model.weights(FP16), "numpy").forward(model.ids, of_numpy)
        # where sums round apart, a number may be kept as the next one, and a row may choose other experts
        assert_rounded_alike(found, expected, model.in_f16[0], dtype, by_row=True)
        first = [array[0] for array in held(cache)], [array[0] for array in held(of_numpy)]
        for one, other in zip(*first, strict=True):
            np.testing.assert_allclose(one, other, atol=2**-7 * float(np.abs(other).max()), err_msg=dtype)
        in_steps, steps = KVCache(config, dtype=dtype), [model.ids[:33], model.ids[33:34], model.ids[34:]]
        parts = [native.forward(step, in_steps) for step in steps]
        assert_same_bits(np.concatenate(parts), found, f"{name}, {dtype}")


@needs_native
@pytest.mark.parametrize("name", NAMES[::3])
def test_bf16_logits_are_those_of_numpy_with_rounded_activations(family_of: Callable[[str], Any], name: str) -> None:
    model = Model(name, family_of(name))
    weights = model.weights(BF16)
    expected, unrounded = model.numpy(rounding_as_native(weights)), model.numpy(weights)
    kernel = model.kernel(1)
    found = model.native(BF16, kernel).forward(model.ids, KVCache(model.family.config))
    assert_rounded_alike(found, expected, unrounded, kernel, model.hands_on_roundings)


@needs_native
@pytest.mark.parametrize("name", NAMES[1::3])
def test_drafts_are_near_those_of_numpy(family_of: Callable[[str], Any], name: str) -> None:
    """One form a family, the next family's the other."""
    model, form = Model(name, family_of(name)), list(DRAFTS)[NAMES.index(name) % len(DRAFTS)]
    weights = convert(model.weights(BF16), Matrices(), DRAFTS[form], model.family.config.looked_up)
    expected, unrounded = model.numpy(rounding_as_native(weights)), model.numpy(rounding_nothing(weights))
    kernel = model.kernel(0)
    found = model.native(BF16, kernel, form=form).forward(model.ids, KVCache(model.family.config))
    assert_rounded_alike(found, expected, unrounded, kernel, model.hands_on_roundings)


@needs_native
def test_a_rows_bits_are_those_of_its_prefix_however_the_text_is_cut_on_any_number_of_threads(model: Model) -> None:
    kernel = model.kernel(1)
    whole = logits_in_steps(model.native(BF16, kernel, 1), model.ids, [1])
    for num_threads, widths in ((1, [3, 5, 8, 16]), (3, [33])):
        found = logits_in_steps(model.native(BF16, kernel, num_threads), model.ids, widths)
        assert_same_bits(found, whole, f"{kernel}, {num_threads} threads, cut at {widths}")
    parts = logits_after_rollback(model.native(BF16, kernel, 1), model.ids, 30, [5, 6, 7, 8])
    assert_same_bits(np.concatenate(parts), whole, f"{kernel}, after tokens that were taken back")
    rebuilt = model.native(BF16, kernel, 1, "bsfp")
    assert_same_bits(logits_in_steps(rebuilt, model.ids, [LENGTH]), whole, f"{kernel}, BSFP")


@needs_native
def test_a_rows_bits_are_those_of_its_path_in_a_batch(model: Model) -> None:
    assert_batch_invariant(model.native(BF16, model.kernel(1), 1), model.ids, rows=range(6))


def assert_native_is_numpy(family: Any, config: ModelConfig, num_left_out: int = 0) -> None:
    """Of the family's weights in F16, described by another configuration."""
    weights, ids = with_format(family.weights, FP16), list(family.token_ids[:LENGTH])
    made = native_copy(config, weights, Matrices(choose_engine(IMPLEMENTATIONS[0], 2)))
    logits = []
    for decoder in (made, Decoder(config, weights, "numpy")):
        cache = KVCache(config)
        cache.num_left_out = num_left_out
        logits.append(decoder.forward(ids, cache))
    found, expected = logits
    np.testing.assert_allclose(found, expected, atol=2e-4 * float(np.abs(expected).max()))


@needs_native
def test_chunks_begin_where_they_would_in_the_whole_text(family_of: Callable[[str], Any]) -> None:
    family = family_of("llama4")
    for num_left_out in (1, 14):
        assert_native_is_numpy(family, family.config, num_left_out)


@needs_native
def test_norms_may_span_heads_that_are_fused_one_by_one(family_of: Callable[[str], Any]) -> None:
    family, norm = family_of("gpt_neox"), Norm("of heads", 1e-5, has_weight=False)
    for are_behind in (False, True):
        own = {"query_norm": norm, "key_norm": norm, "norm_span": "row", "norms_rotated": are_behind}
        layers = [replace(layer, mixer=replace(layer.mixer, **own)) for layer in family.config.layers]
        assert_native_is_numpy(family, replace(family.config, layers=tuple(layers)))


# ---- what is required, and said ----


def test_a_description_requires_what_transformers_saves_and_each_tensor_left_out_is_named(family: Any) -> None:
    folder = family.folder
    with open_checkpoint(folder) as checkpoint:
        held = held_tensors(checkpoint)
    config = fitted(describe_file(folder / "config.json"), held, lambda *_: True)
    own = {own: name for name in held if (own := config.own_name(name)) is not None}
    required = required_tensors(config, own)
    assert required.keys() == own.keys() - {own_name for own_name in own if own_name.endswith(FP32_BUFFERS)}
    check_whole(config, held, "tiny")
    for left_out in required:
        rest = {name: tensor for name, tensor in held.items() if name != own[left_out]}
        found = list(faults(config, rest))
        # a stack that is gone makes its layer one of experts apart, each of which is missing
        assert found and (found[0][0] == own[left_out] or "experts" in left_out), (left_out, found[:1])
        assert f"tensor {found[0][0]} is missing; its shape" in found[0][1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            HeldTensor((47, 48), "BF16"),
            r"has shape \[47, 48\]; \[48, 48\] is required of the llama model that config.json",
        ),
        (HeldTensor((48, 48), "F32"), r"has dtype F32; BF16 or F16 is required of it. Give --dtype bf16"),
        (HeldTensor((48, 48), "I8"), r"has dtype I8; BF16 or F16 is required of it. Export the model in 16 bits"),
    ],
)
def test_another_shape_or_dtype_is_named(change: HeldTensor, words: str, family_of: Callable[[str], Any]) -> None:
    folder, tensor = family_of("llama").folder, "model.layers.1.self_attn.q_proj.weight"
    with open_checkpoint(folder) as checkpoint:
        held = held_tensors(checkpoint)
    config = fitted(describe_file(folder / "config.json"), held, lambda *_: True)
    with pytest.raises(ModelError, match=rf"tiny: tensor {tensor} {words}"):
        check_whole(config, held | {tensor: change}, "tiny")


def test_the_page_says_what_each_family_is_tested_against() -> None:
    table = re.search(r"^\| family \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert table is not None
    said: dict[str, set[str]] = {"transformers": set(), "llama.cpp": set(), "compressed-tensors": set()}
    for line in table[0].splitlines()[2:-1]:
        _, _, kinds, oracles, _ = line.split("|")
        every = re.findall(r"`(\w+)`", kinds)
        for oracle, found in said.items():
            if named := re.search(rf"{re.escape(oracle)}(?: \(([^)]*)\))?", oracles):
                found.update(every if named[1] is None else re.findall(r"`(\w+)`", named[1]))
    kinds_of = {name: own["model_type"] for name, own in checkpoints.FAMILIES.items()}
    packed = {kinds_of[name] for name in PACKED} | {"llama", "glm4_moe"}  # in tests of their own
    assert said == {
        "transformers": {*FAMILIES, *TOWERS},
        # tests/gguf/test_families.py
        "llama.cpp": {*ARCHITECTURES, "gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe"},
        "compressed-tensors": packed,
    }
    assert set(kinds_of.values()) == {*FAMILIES, *TOWERS}, "every family of the table is tested"
