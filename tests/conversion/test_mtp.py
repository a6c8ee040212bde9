"""MTP tensors through the line: converted, proven, looked at, priced and given back."""

from math import prod
from pathlib import Path

import pytest
import safetensors.numpy
from mtp_packages import MODULE, write_mimo
from packages import quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cost.package_levels import package_levels
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.package.package import Package
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verify import verify

MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj", "input_proj")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mimo(tmp_path_factory.mktemp("mtp") / "source")


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_its_matrices_are_converted_proven_and_given_back(source: Path, codec: str, tmp_path: Path) -> None:
    manifest = quantize(source, tmp_path / "package", codec=codec)
    codecs = {record.name: record.codec for record in manifest.tensors}
    assert {codecs[f"{MODULE}{name}.weight"] for name in MATRICES} == {codec}
    assert codecs[f"{MODULE}token_layernorm.weight"] == "keep"
    with open_checkpoint(source) as checkpoint:
        proof = verify(tmp_path / "package", checkpoint)
    assert proof.lossless and proof.num_bit_exact == len(manifest.tensors)
    export_safetensors(tmp_path / "package", tmp_path / "plain")
    theirs, ours = (safetensors.numpy.load_file(at / "model.safetensors") for at in (source, tmp_path / "plain"))
    assert theirs.keys() == ours.keys()
    assert all(theirs[name].tobytes() == ours[name].tobytes() for name in theirs if name.startswith(MODULE))


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_bytes_of_its_pass_are_its_own_and_the_heads(source: Path, codec: str, tmp_path: Path) -> None:
    quantize(source, tmp_path / "package", codec=codec, drafts=("mtp",))
    with open_checkpoint(source) as checkpoint:
        sizes = {n: prod(t.shape) for n, t in checkpoint.tensors.items() if len(t.shape) == 2}
    head = sizes["model.embed_tokens.weight"]
    module = sum(size for name, size in sizes.items() if name.startswith(MODULE))
    own, whole = module + head, sum(sizes.values()) - module
    drafts = [parse_draft("mtp,bits=16")]
    with LoadedPackage(tmp_path / "package", drafts=drafts) as loaded:
        target, draft, four_bits, exact = (loaded.bytes_per_pass(level) for level in loaded.levels)
    bits = 16 if codec == "mxfp4" else 8 * target / whole
    head_bits = 8.25 if codec == "mxfp4" else 4.25
    assert exact == pytest.approx(own * bits / 8, rel=0.02)
    assert four_bits == pytest.approx((module * 4.25 + head * head_bits) / 8, rel=0.02)
    assert draft == pytest.approx(((whole - head) * 4.25 + head * head_bits) / 8, rel=0.02)  # without the module
    with Package(tmp_path / "package") as package:
        levels = {level.name: level for level in package_levels(package)}
    assert levels["mtp"].num_bytes == four_bits and levels["mtp"].architecture is not None
    assert levels["mtp"].architecture.num_layers == 1 and levels["mtp"].acceptance == 0.875


def test_inspect_says_where_it_is(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "package")
    for at in (source, tmp_path / "package"):
        with open_weights(str(at)) as weights:
            inspection = inspect_weights(weights, per="layer")
        assert any("MTP layer: 16 tensors under model.mtp_layers.0." in note for note in inspection.notes)
        groups = {group.name: group for group in inspection.groups}
        assert list(groups) == ["0", "1", "2", "MTP", "outside layers"]
