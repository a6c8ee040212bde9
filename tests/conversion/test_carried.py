"""gpt-oss's own MXFP4: carried over as it is, target and draft at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import check_exact, compare, forge, quantize
from stacked_models import packed_experts, write_carried_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import unpack_nibbles, unpack_scales
from mxconv.errors import CheckpointError, PackageError
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.verify import verify

EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"
BLOCKS, SCALES = f"{EXPERTS}_blocks", f"{EXPERTS}_scales"
both_codecs = pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of gate_up_proj are no whole tiles."""
    return write_carried_model(tmp_path_factory.mktemp("carried") / "m", gate_up_proj=(4, 200, 2), down_proj=(4, 64, 3))


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def package(source: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Its package in each codec, to be read only."""
    path: Path = tmp_path_factory.mktemp("packages") / request.param
    quantize(source, path, codec=request.param)
    return path


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def expert_values(package: Package, name: str) -> np.ndarray:
    """(experts, in_features, out_features) float32, as transformers has them."""
    record = next(record for record in package.manifest.tensors if record.name == name)
    assert record.stack is not None
    rows, columns = record.stack.matrix_shape
    found = []
    for number in range(record.stack.num_experts):
        stored = package.mxfp4(record, number)
        values = dequantize_mxfp4(unpack_nibbles(stored.codes), unpack_scales(stored.scales))
        found.append(values[:rows, :columns].T)
    return np.stack(found)


def test_both_tensors_come_back_byte_for_byte(source: Path, package: Path, tmp_path: Path) -> None:
    check_exact(package, source)
    records = {record.name: record for record in read_manifest(package).tensors}
    for name, part in ((BLOCKS, "codes"), (SCALES, "scales")):
        record = records[name]
        assert (record.codec, record.reason, record.dtype) == ("mxfp4", "MXFP4 of the source, carried over", "U8")
        assert record.carried is not None and (record.carried.of, record.carried.part) == (EXPERTS, part)
    assert records[f"{EXPERTS}_bias"].codec == "keep"
    assert records["model.layers.0.self_attn.q_proj.weight"].codec == package.name
    export_safetensors(package, tmp_path / "plain")
    expected, found = tensors_of(source), tensors_of(tmp_path / "plain")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name].view(torch.uint8), found[name].view(torch.uint8)) for name in expected)


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 4), st.sampled_from(["mxfp4", "bsfp"]))
def test_any_blocks_come_back(
    tmp_path_factory: pytest.TempPathFactory, num_experts: int, rows: int, num_blocks: int, codec: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    tensors = {f"x_{part}": tensor for part, tensor in packed_experts(num_experts, rows, num_blocks).items()}
    safetensors.torch.save_file(tensors, folder / "m.safetensors")
    quantize(folder / "m.safetensors", folder / "p", codec=codec)
    assert verify(folder / "p").lossless and compare(folder / "p", folder / "m.safetensors").ok
    expected = convert_moe_packed_tensors(tensors["x_blocks"], tensors["x_scales"]).float().numpy()
    with Package(folder / "p") as package:
        for name in tensors:  # either record leads to both arrays
            assert np.array_equal(expert_values(package, name), expected)


@both_codecs
def test_a_scale_that_is_no_number_is_named(source: Path, tmp_path: Path, codec: str) -> None:
    tensors = tensors_of(source)
    tensors[SCALES][3, 199, 1] = 255
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        quantize(tmp_path / "m", tmp_path / "p", codec=codec)
    assert str(caught.value) == (
        f"{tmp_path}/m/model.safetensors: tensor {SCALES} holds 255 at index [3, 199, 1]; scales of 0 to 254 are "
        f"required. Use --skip '{SCALES}' to keep these experts as they are."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
    records = {r.name: r for r in quantize(tmp_path / "m", tmp_path / "p", codec=codec, skip=(SCALES,)).tensors}
    assert [(records[n].codec, records[n].carried) for n in (BLOCKS, SCALES)] == [("keep", None)] * 2
    assert compare(tmp_path / "p", tmp_path / "m").ok


def test_records_that_contradict_themselves_are_refused(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", codec="bsfp")

    def change(**members: Any) -> str:
        whole = {"codec": "mxfp4", "shape": [4, 200, 2, 16], "carried": {"of": EXPERTS, "part": "codes"}}

        def edit(manifest: dict[str, Any]) -> None:
            next(record for record in manifest["tensors"] if record["name"] == BLOCKS).update(whole | members)

        forge(tmp_path / "p", edit)
        with pytest.raises(PackageError) as caught:
            Package(tmp_path / "p")
        return str(caught.value)

    assert "carried codes: mxfp4 of U8 [4, 200, 2]; mxfp4 of U8 (experts, out_features, blocks, 16)" in change(
        shape=[4, 200, 2]
    )
    assert "carried scales: mxfp4 of U8 [4, 200, 2, 16]" in change(carried={"of": EXPERTS, "part": "scales"})
    assert "carried codes: keep of U8" in change(codec="keep")
    assert "array nothing.codes is missing" in change(carried={"of": "nothing", "part": "codes"})
    assert f"array {EXPERTS}.codes is U8 [52, 8, 64]; U8 [48, 8, 64] is required" in change(shape=[4, 190, 2, 16])
