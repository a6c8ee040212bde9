"""Every family in llama.cpp: it has transformers' logits, or the export says what is missing."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_gguf import all_values
from gguf_models import write_byte_level_tokenizer
from llama_cpp_oracle import LlamaCpp, with_f32_matrices
from packages import quantize

from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8, quantize_mxint8
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_weights import dense_weights
from mxconv.errors import ModelError
from mxconv.gguf.architectures import ARCHITECTURES
from mxconv.gguf.exportability import activation_of
from mxconv.gguf.metadata import read_metadata
from mxconv.interop.gguf_export import export_gguf
from mxconv.open_source import open_source

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402  # of transformers

pytest.importorskip("llama_cpp", reason="make test builds llama-cpp-python")

NUM_TOKENS = 80
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # rows that are whole blocks of MXFP4
WITHOUT_WINDOW = {"sliding_window": None}
GEMMA3 = {"query_pre_attn_scalar": 16}
GEMMA4 = {"vocab_size_per_layer_input": 320}
LONGROPE = checkpoints.FAMILIES["phi3, LongRoPE"]["rope_parameters"]
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0, 5.0], "long_factor": [1.0, 2.5, 4.0, 6.0, 7.0]}
DELTA_NET = {"attention_bias": False, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
STATE_SPACE = {"state_size": 16}
GRANITE_HYBRID = {"mamba_n_heads": 8, "mamba_proj_bias": False, "mamba_d_state": 16}
LLAMA4 = {
    "intermediate_size": 64,
    "intermediate_size_mlp": 96,
    "no_rope_layers": [1, 1, 1, 0],
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}

# what a family's checkpoint is changed in so that llama.cpp has all of it
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": WITHOUT_WINDOW,
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": GEMMA3,
    "gemma3, of several towers": GEMMA3,
    "qwen3": {"attention_bias": False},
    "gemma4": GEMMA4,
    "gemma4, of several towers": GEMMA4,
    "phi3": WITHOUT_WINDOW,
    "phi3, LongRoPE": {  # llama.cpp's contexts are multiples of 256
        "rope_parameters": LONGROPE | FACTORS | {"original_max_position_embeddings": 256},
        "original_max_position_embeddings": 256,
        "max_position_embeddings": 512,
    },
    "exaone4": {"num_hidden_layers": 64, "layer_types": checkpoints.SLIDING * 16},  # the only depth with windows
    "olmo3": {"tie_word_embeddings": True, "rope_scaling": checkpoints.YARN | {"rope_theta": 500000.0}},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "ministral3": {"rope_parameters": checkpoints.MINISTRAL["rope_parameters"] | {"beta_slow": 2.0}},
    "seed_oss": {"attention_out_bias": False},
    "arcee": {"mlp_bias": False},
    "starcoder2": WITHOUT_WINDOW,
    "gpt_neox": {"hidden_act": "gelu_new"},
    "gpt_neox, one after the other": {"hidden_act": "gelu_new"},
    "mixtral": WITHOUT_WINDOW,
    "olmoe": {"num_key_value_heads": 4, "norm_topk_prob": False, "moe_intermediate_size": 64},
    "qwen2_moe": {"decoder_sparse_step": 1, "use_sliding_window": False, "moe_intermediate_size": 64},
    "glm4_moe": {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 64},
    "qwen3_moe": {"mlp_only_layers": [], "moe_intermediate_size": 64},
    "granitemoe": {"intermediate_size": 64},
    "gpt_oss": {
        "intermediate_size": 64,
        "swiglu_limit": 7.0,
        "rope_parameters": checkpoints.YARN | {"truncate": True},
        "layer_types": checkpoints.SLIDING,
    },
    "llama4": LLAMA4,
    "llama4, of several towers": LLAMA4,
    "lfm2": {"conv_bias": False},
    "mamba2": STATE_SPACE | {"num_heads": 8, "use_bias": False, "time_step_limit": [0.0, float("inf")]},
    "granitemoehybrid": GRANITE_HYBRID,
    "granitemoehybrid, rotated": GRANITE_HYBRID,
    "granitemoehybrid, with experts": GRANITE_HYBRID | {"intermediate_size": 64},
    "qwen3_5": DELTA_NET,
    "qwen3_5, of several towers": DELTA_NET,
    "qwen3_5_moe": DELTA_NET | {"moe_intermediate_size": 64},
    "qwen3_5_moe, of several towers": DELTA_NET | {"moe_intermediate_size": 64},
    "qwen3_next, with experts": DELTA_NET | {"mlp_only_layers": [], "moe_intermediate_size": 64},
}
IGNORED_WINDOWS = ("smollm3, windows",)
WITH_TOWERS = {*ARCHITECTURES, "gemma3", "gemma4", "mistral3", "qwen3_5", "qwen3_5_moe", "llama4"}
REFUSED_WHOLE = [
    name
    for name, own in checkpoints.FAMILIES.items()
    if own["model_type"] not in WITH_TOWERS or name == "gemma4, with experts"
]
REFUSED_HERE = (*REFUSED_WHOLE, *IGNORED_WINDOWS, "olmoe, clipped", "qwen3_next")
EXPORTED = [name for name in checkpoints.FAMILIES if name not in REFUSED_HERE]
COMPUTED = [name for name in EXPORTED if "several towers" not in name]  # whose text alone is computed alike


@dataclass(frozen=True)
class Exported:
    """A package's files, and what transformers makes of some tokens; `has_silu` if GELU is not its activation."""

    source: Path
    package: Path
    folder: Path
    notes: tuple[str, ...]
    token_ids: list[int]
    expected: np.ndarray
    has_silu: bool


def make(family: str, folder: Path, **changes: Any) -> Exported:
    model = checkpoints.make_model(family, **(WIDE | {"vocab_size": 320} | CHANGES.get(family, {}) | changes))
    checkpoints.write_checkpoint(model, folder / "source")
    write_byte_level_tokenizer(folder / "source", "llama-bpe")
    token_ids = [int(token) for token in np.random.default_rng(7).integers(0, 300, NUM_TOKENS)]
    expected = checkpoints.logits_of(model, token_ids)
    quantize(folder / "source", folder / "package")
    export = export_gguf(folder / "package", folder / "out")
    config = describe_file(folder / "package" / "config.json")
    has_silu = activation_of(config.layers[0]) not in ("gelu", "gelu_tanh")
    return Exported(folder / "source", folder / "package", folder / "out", export.notes, token_ids, expected, has_silu)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Makes (once) what a family's checkpoint is exported as."""
    return cache(lambda family: make(family, tmp_path_factory.mktemp("family")))


def logits_of(path: Path, token_ids: list[int]) -> np.ndarray:
    """llama.cpp's, in float32, with room for a hundred tokens."""
    loaded = LlamaCpp(with_f32_matrices(path, path.with_name(f"f32-{path.name}")), 128)
    try:
        return loaded.logits(token_ids)
    finally:
        loaded.close()


@pytest.mark.parametrize("family", COMPUTED)
def test_llama_cpp_has_the_logits_of_transformers(family: str, exported: Callable[[str], Exported]) -> None:
    made = exported(family)
    found = logits_of(made.folder / "out-BF16.gguf", made.token_ids)
    largest = np.abs(found - made.expected).max() / np.abs(made.expected).max()
    print(f"{family}: float32 logits differ by up to {largest:.1e} of the largest; {made.notes}")
    assert largest <= (1e-3 if made.has_silu else 1e-2)
    margins = np.diff(np.sort(made.expected, axis=-1)[:, -2:], axis=-1)[:, 0]
    is_clear = margins > 2 * np.abs(found - made.expected).max(axis=-1)
    assert is_clear.mean() > 0.9
    assert (found.argmax(-1) == made.expected.argmax(-1))[is_clear].all()
    check_draft(made.folder, is_turned=family == "gpt2")


YARN = {key: checkpoints.YARN[key] for key in ("rope_type", "factor", "original_max_position_embeddings")}
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}

# what a file does not say, as the family's published models have it and as the checkpoints here have it
UNSAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt_neox": ({"hidden_act": "gelu"}, {"hidden_act": "gelu_new"}),
    "gpt_neox, one after the other": ({"hidden_act": "gelu"}, {"hidden_act": "gelu_new"}),
    "gpt_oss": ({"rope_scaling": YARN | BETAS | {"truncate": False}}, {"rope_scaling": YARN}),
}
INEXACT = {"hunyuan_v1_dense"}  # its base, stretched, is no float32
COMES_BACK_AS = {"mistral": "llama"}


@pytest.mark.parametrize("family", EXPORTED)
def test_what_is_exported_is_read_back(family: str, exported: Callable[[str], Exported]) -> None:
    made = exported(family)
    own = describe_file(made.source / "config.json")
    with open_source(made.folder / "out-BF16.gguf") as again, open_checkpoint(made.source) as source:
        assert again.config is not None
        published, here = UNSAID.get(family, ({}, {}))
        assert again.config | published == again.config
        config = describe_values(again.config | here)
        assert again.config["architectures"] == [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
        assert config.model_type == COMES_BACK_AS.get(own.model_type, own.model_type)
        expected = {own.own_name(name): tensor for name, tensor in source.tensors.items() if own.own_name(name)}
        assert set(again.tensors) == set(expected)
        for name, tensor in expected.items():
            found = again.tensors[name]
            assert found.shape == tensor.shape
            assert found.dtype == (tensor.dtype if len(tensor.shape) > 1 else "F32")
            np.testing.assert_array_equal(as_float(found), as_float(tensor), name)
            rows = found.rows(1, max(found.shape[0] - 1, 1)) if found.shape[0] > 1 else found.array()[1:]
            np.testing.assert_array_equal(rows, found.array()[1 : max(found.shape[0] - 1, 1)], name)
            found.release()
        theirs, ours = (
            Decoder(each, dense_weights(tensors, each), family).forward(made.token_ids, KVCache(each))
            for each, tensors in ((config, again.tensors), (own, source.tensors))
        )
        if family in INEXACT:
            np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())
        else:
            np.testing.assert_array_equal(theirs, ours)


def as_float(tensor: SourceTensor) -> np.ndarray:
    found = tensor.array()
    return FORMATS[tensor.dtype].decode(found) if tensor.dtype in FORMATS else found  # type: ignore[arg-type]


def check_draft(folder: Path, is_turned: bool) -> None:
    """The draft's matrices are the target's in the same places, each block of 32 rounded, to 8 bits in the head."""
    target, draft = (all_values(folder / f"out-{level}.gguf") for level in ("BF16", "MXFP4"))
    assert set(target) <= set(draft) <= {*target, "output.weight"}
    num_rounded = 0
    for name, values in draft.items():
        exact, is_head = target.get(name, target["token_embd.weight"]), name == "output.weight"
        if np.array_equal(values, exact):
            continue
        turned = exact.T if is_turned and not is_head else exact
        rows = np.ascontiguousarray(turned).reshape(-1, turned.shape[-1])  # of all experts
        found = dequantize_mxint8(*quantize_mxint8(rows)) if is_head else dequantize_mxfp4(*quantize_mxfp4(rows))
        rounded = found[:, : turned.shape[-1]].reshape(turned.shape)
        np.testing.assert_array_equal(values, rounded.T if turned is not exact else rounded, name)
        num_rounded += 1
    assert num_rounded >= 4


@pytest.mark.parametrize("family", IGNORED_WINDOWS)
def test_windows_that_llama_cpp_lacks_are_noted(family: str, tmp_path: Path) -> None:
    (note, *_) = make(family, tmp_path).notes
    assert note == "llama.cpp's smollm3 attends to all positions: beyond the model's window of 9 its text differs."


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bias": ("qwen3", {"attention_bias": True}, "a bias of self_attn.o_proj, which llama.cpp's qwen3 does not have"),
    "no bias": ("gpt_neox", {"attention_bias": False}, "attention.query_key_value without a bias, which"),
    "windows of exaone4": ("exaone4", {"num_hidden_layers": 4, "layer_types": checkpoints.SLIDING}, "windows in a mo"),
    "scale": ("gemma3", {"query_pre_attn_scalar": 24}, "scores that are multiplied by 0.204124, not 0.25, which llama"),
    "cap": ("gemma2", {"attn_logit_softcapping": None}, "scores or logits without a cap, which llama.cpp's gemma2"),
    "layers that rotate": ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "layer 1 rotates nothing, which"),
    "head": ("cohere2", {"tie_word_embeddings": False}, "an output head of its own (tie_word_embeddings false), which"),
    "heads": ("olmo2", {"head_dim": 32}, "4 heads of 32 values that do not make hidden_size, 64, which"),
    "scaling": ("qwen3", {"rope_parameters": checkpoints.LLAMA3}, "rope_type llama3, which llama.cpp's qwen3 does"),
    "betas": ("llama", {"rope_parameters": checkpoints.YARN | {"beta_slow": 2.0}}, "YaRN's beta_fast 32 and beta_slow"),
    "truncate": ("llama", {"rope_parameters": checkpoints.YARN | {"truncate": False}}, "YaRN without rounding (trunc"),
    "layers without experts": ("qwen3_moe", {"mlp_only_layers": [1]}, "layers without experts among those with some"),
    "shares of experts": ("olmoe", {"norm_topk_prob": True}, "experts that are chosen, counted or shared in ano"),
    "shared keys": ("olmoe", {"num_key_value_heads": 2}, "2 keys for 4 heads, which llama.cpp's olmoe does not have"),
    "clipped heads": ("olmoe, clipped", {}, "attention in chunks, with sinks or with clipped heads, which"),
    "groups of experts": ("glm4_moe", {"n_group": 4, "topk_group": 2}, "experts that are chosen, counted or shared in"),
    "no experts": ("qwen3_next", {}, "no experts, which llama.cpp's qwen3next does not have"),
    "value heads": ("qwen3_5", DELTA_NET | {"linear_value_head_dim": 16}, "value heads of 16 numbers beside key heads"),
    "bias of a convolution": ("lfm2", {"conv_bias": True}, "a bias of conv.in_proj, which llama.cpp's lfm2 does not"),
    "step limits": ("mamba2", {"time_step_limit": [0.05, 0.9]}, "time_step_limit [0.05, 0.9], which llama.cpp's mamba"),
    "activation": ("granite", {"hidden_act": "gelu"}, "hidden_act gelu, which llama.cpp's granite does not have"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_llama_cpp_lacks_is_refused_by_name(what: str, tmp_path: Path) -> None:
    family, changes, message = REFUSED[what]
    changes = WIDE | {"vocab_size": 320} | CHANGES.get(family, {}) | changes
    checkpoints.config_of(family, **changes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        read_metadata(tmp_path, describe_file(tmp_path / "config.json"))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert str(caught.value).endswith("GGUF can hold this model only without it. Export with --to safetensors.")


@pytest.mark.parametrize("family", REFUSED_WHOLE)
def test_families_that_are_not_exported_are_refused_by_name(family: str, tmp_path: Path) -> None:
    checkpoints.config_of(family).save_pretrained(tmp_path)
    kind = describe_file(tmp_path / "config.json").model_type
    message = f"(model_type {kind}; the export to GGUF has arcee, |mixtures of experts, which llama.cpp's gemma4)"
    with pytest.raises(ModelError, match=message):
        read_metadata(tmp_path, describe_file(tmp_path / "config.json"))
