import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors

from mxconv.errors import MxconvError
from mxconv.report.inspection import Inspection, kind_of, layer_of
from mxconv.report.weight_statistics import merge

Inspect = Callable[..., Inspection]


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.layers.12.self_attn.q_proj.weight", "12", "q_proj"),
        ("model.layers.0.self_attn.q_proj.bias", "0", "q_proj"),
        ("model.layers.3.block_sparse_moe.experts.5.w1.weight", "3", "w1"),
        ("transformer.h.7.attn.c_attn.weight", "7", "c_attn"),
        ("model.embed_tokens.weight", "outside layers", "embed_tokens"),
        ("lm_head.weight", "outside layers", "lm_head"),
        ("weight", "outside layers", "weight"),
    ],
)
def test_layers_and_kinds_are_read_from_names(name: str, layer: str, kind: str) -> None:
    assert layer_of(name) == layer
    assert kind_of(name) == kind


def test_layers_are_in_the_order_of_their_numbers(tmp_path: Path, inspect_path: Inspect) -> None:
    one = np.ones((1, 1), ml_dtypes.bfloat16)
    names = [f"model.layers.{layer}.q_proj.weight" for layer in (10, 9, 0)]
    path = write_safetensors(tmp_path / "layers.safetensors", dict.fromkeys([*names, "head"], one))
    assert [g.name for g in inspect_path(path, per="layer").groups] == ["0", "9", "10", "outside layers"]


def test_groups_add_up_to_the_total(tiny_llama: Path, inspect_path: Inspect) -> None:
    by_layer, by_kind = (inspect_path(tiny_llama, per=per) for per in ("layer", "kind"))
    assert by_layer.total.to_json() == by_kind.total.to_json()
    for inspection in (by_layer, by_kind):
        assert sum(group.num_weights for group in inspection.groups) == inspection.total.num_weights
        merged = merge("total", inspection.groups).exponents
        assert merged is not None and inspection.total.exponents is not None
        assert (merged.fields == inspection.total.exponents.fields).all()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_figures_depend_on_neither_threads_nor_kernels(
    tiny_llama: Path,
    inspect_path: Inspect,
    package: Callable[..., Path],
    codec: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = package(tiny_llama, codec=codec)
    found = inspect_path(path, num_threads=3).to_json()
    assert inspect_path(path).to_json() == found
    monkeypatch.setenv("MXCONV_KERNEL", "numpy")
    assert inspect_path(path, num_threads=1).to_json() == found


def test_only_tensors_that_match_are_read(tiny_llama: Path, inspect_path: Inspect) -> None:
    found = inspect_path(tiny_llama, tensor_glob="*.0.*k_proj*")
    assert [tensor.name for tensor in found.tensors] == ["model.layers.0.self_attn.k_proj.weight"]
    assert found.total.num_tensors == 1


def test_a_pattern_without_a_match_is_an_error(tiny_llama: Path, inspect_path: Inspect) -> None:
    with pytest.raises(
        MxconvError, match=r"none of its 12 tensors matches --tensor 'x\*'; at least one is required\. Its"
    ):
        inspect_path(tiny_llama, tensor_glob="x*")


def test_the_object_is_strict_json_with_the_keys_of_the_contract(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    text = json.dumps(inspect_path(odd_checkpoint).to_json(), allow_nan=False)
    found = json.loads(text)
    keys = "name dtype shape exponent_histogram max_abs num_zero num_nonfinite window num_outside_window "
    keys += "bsfp_bits_per_weight bsfp_draft_sqnr_db bsfp_paper_draft_sqnr_db mxfp4_sqnr_db"
    for row in (*found["tensors"], *found["groups"], found["total"]):
        assert set(keys.split()) <= set(row)
