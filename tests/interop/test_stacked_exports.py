"""Exports of packages with stacks of experts: plain weights are right, compressed-tensors refuses them."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from packages import quantize
from stacked_models import write_random_model

from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import unpack_nibbles, unpack_scales
from mxconv.errors import MxconvError
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.package.package import Package

STACKS = {
    "gpt_oss": "model.layers.0.mlp.experts.down_proj",
    "granitemoe": "model.layers.0.block_sparse_moe.input_linear.weight",
}


@pytest.fixture(scope="module", params=list(STACKS))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks") / request.param
    return write_random_model(folder, request.param, num_hidden_layers=1, hidden_size=64, head_dim=16)


@pytest.fixture(scope="module")
def package(source: Path) -> Path:
    quantize(source, source.with_name("package"))
    return source.with_name("package")


def test_the_target_is_exported_bit_for_bit(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", codec="bsfp")
    export_safetensors(tmp_path / "p", tmp_path / "plain")
    expected, found = (safetensors.torch.load_file(f / "model.safetensors") for f in (source, tmp_path / "plain"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name].view(torch.int16), found[name].view(torch.int16)) for name in expected)


def test_the_draft_is_exported_the_way_the_source_has_it(package: Path, tmp_path: Path) -> None:
    export_safetensors(package, tmp_path / "plain", level="draft")
    plain = safetensors.torch.load_file(tmp_path / "plain" / "model.safetensors")
    with Package(package) as opened:
        stacks = [record for record in opened.manifest.tensors if record.stack is not None]
        assert len(stacks) == 2
        for record in stacks:
            for number in range(4):
                stored = opened.mxfp4(record, number)
                rows, columns = stored.shape
                values = dequantize_mxfp4(unpack_nibbles(stored.codes), unpack_scales(stored.scales))[:rows, :columns]
                found = plain[record.name][number].float().numpy()
                assert np.array_equal(found, values if record.name.endswith("weight") else values.T)


def test_a_format_without_a_place_for_stacks_names_the_tensor(source: Path, package: Path, tmp_path: Path) -> None:
    with pytest.raises(MxconvError) as caught:
        export_compressed_tensors(package, tmp_path / "out")
    name = STACKS[source.name]
    shape = [4, 384, 64] if source.name == "gpt_oss" else [4, 768, 64]
    assert str(caught.value) == (
        f"{package}: tensor {name} {shape} is a stack of experts; compressed-tensors is written of matrices and "
        "vectors alone. Export --to safetensors."
    )
    assert list(tmp_path.iterdir()) == []
