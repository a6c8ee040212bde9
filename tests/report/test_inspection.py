import io
import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from rich.console import Console

from mxconv.errors import MxconvError
from mxconv.report.inspection import Inspection, kind_of, layer_of
from mxconv.report.inspection_page import print_inspection
from mxconv.report.tables import percent
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


def test_the_object_is_strict_json_with_the_keys_of_the_contract(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    text = json.dumps(inspect_path(odd_checkpoint).to_json(), allow_nan=False)
    found = json.loads(text)
    keys = "name dtype shape exponent_histogram max_abs num_zero num_nonfinite window num_outside_window "
    keys += "bsfp_bits_per_weight bsfp_draft_sqnr_db bsfp_paper_draft_sqnr_db mxfp4_sqnr_db"
    for row in (*found["tensors"], *found["groups"], found["total"]):
        assert set(keys.split()) <= set(row)


def printed(inspection: Inspection, width: int = 140, encoding: str = "utf-8", *, row_histograms: bool = False) -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    print_inspection(inspection, Console(file=file, width=width), row_histograms=row_histograms)
    file.flush()
    return buffer.getvalue().decode(encoding)


def test_the_histogram_names_every_exponent_its_weights_and_the_window(model: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(model)
    text = printed(inspection)
    exponents = inspection.total.exponents
    assert exponents is not None and exponents.window is not None
    low, high = exponents.window
    bars = {line.split()[0]: line for line in text.splitlines() if line.strip()[:1].isdigit() and "━" in line}
    for field in range(low, high + 1):
        assert f"{exponents.nonzero[field]:,}" in bars[str(field)]
    assert " | " in bars[str(high)] and " | " in bars[str(low)]
    assert f"window {low}..{high} (16 exponents" in text
    assert "log scale, up to" in text


def test_the_table_has_a_row_a_group_and_the_figures_of_the_total(tiny_llama: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(tiny_llama, per="layer")
    lines = printed(inspection).splitlines()
    assert any(line.startswith(" layer 0") for line in lines)
    assert any(line.startswith(" outside layers") for line in lines)
    (total,) = (line for line in lines if line.startswith(" total"))
    assert f"{inspection.total.bsfp_draft_sqnr_db:.2f}" in total
    assert f"{inspection.total.mxfp4_sqnr_db:.2f}" in total


@pytest.mark.parametrize("width", [80, 100, 140])
def test_lines_fit_the_terminal(
    width: int, tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    for path in (tiny_llama, package(tiny_llama, codec="mxfp4")):
        table = printed(inspect_path(path, per="kind"), width).split("By kind")[1]
        assert max(len(line) for line in table.splitlines()) <= width
        assert "…" not in table


def test_a_pattern_selects_tensors_which_may_have_histograms_of_their_own(
    tiny_llama: Path, inspect_path: Inspect
) -> None:
    inspection = inspect_path(tiny_llama, per="tensor", tensor_glob="*mlp*")
    assert [tensor.name.split(".")[4] for tensor in inspection.tensors] == ["down_proj", "gate_proj", "up_proj"]
    text = printed(inspection, encoding="ascii", row_histograms=True)
    assert text.count("Exponents of model.layers.0.mlp.") == 3
    assert "Exponents of all tensors" in text and "----" in text  # in a terminal without Unicode
    with pytest.raises(
        MxconvError, match=r"none of its 12 tensors matches --tensor 'x\*'; at least one is required\. It"
    ):
        inspect_path(tiny_llama, tensor_glob="x*")


def test_names_cannot_steer_the_terminal(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    text = printed(inspect_path(odd_checkpoint, per="tensor"), width=160)
    assert "\x1b" not in text
    assert "a & $b$ \\x1b[31m.weight" in text
    assert "<script>alert(1)</script>.weight" in text
    assert "note: 1 of 10 tensors are F32 and not counted; quantize needs --dtype" in text
    assert "non-finite weights: quantize needs --on-nonfinite keep" in text


def test_percentages_never_round_to_all_or_nothing() -> None:
    found = [percent(fraction) for fraction in (0, 1e-9, 0.5, 0.99999999, 1)]
    assert found == ["0%", "< 0.01%", "50.00%", "99.99%", "100%"]
