"""A package's matrices on a device: the same bytes, hashed on the way."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from checkpoints import write_tiny_llama
from gpu_weights import DEVICE, bits
from packages import quantize

from mxconv.errors import ModelError, PackageError
from mxconv.gpu import device, gpu_package
from mxconv.gpu.gpu_package import GpuPackage
from mxconv.gpu.weight import BsfpWeight
from mxconv.kernels.encoders import decode_bsfp_draft, decode_mxfp4
from mxconv.package.package import Package


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("gpu") / "llama")


@pytest.fixture(scope="module")
def bsfp(llama: Path) -> Path:
    quantize(llama, llama.parent / "bsfp", codec="bsfp")
    return llama.parent / "bsfp"


@pytest.fixture(scope="module")
def mxfp4(llama: Path) -> Path:
    quantize(llama, llama.parent / "mxfp4")
    return llama.parent / "mxfp4"


NAME = "model.layers.0.mlp.down_proj.weight"


def test_a_bsfp_package_arrives_whole(bsfp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_package, "PIECE_BYTES", 1000)  # arrays begin and end anywhere in a piece
    seen: list[tuple[int, int]] = []
    loaded = GpuPackage(bsfp, DEVICE, progress=lambda _, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    with Package(bsfp) as package:
        records = {each.name: each for each in package.manifest.tensors if each.codec == "bsfp"}
        assert set(loaded.weights) == set(records)
        held = package.bsfp(records[NAME])
        weight = loaded.weights[NAME]
        assert isinstance(weight, BsfpWeight)
        assert np.array_equal(bits(weight.rebuild()), held.target_rows(0, held.shape[0]))
        draft = decode_bsfp_draft(held.packed, held.table, held.shape)
        assert np.array_equal(weight.draft.rebuild().cpu().numpy(), draft)
    assert loaded.num_bytes == sum(each.num_bytes for each in loaded.weights.values())


def test_a_draft_alone_is_a_third_of_it(bsfp: Path, mxfp4: Path) -> None:
    whole, draft = GpuPackage(bsfp, DEVICE), GpuPackage(bsfp, DEVICE, level="draft")
    assert draft.num_bytes < 0.45 * whole.num_bytes
    x = torch.ones(1, whole.weights[NAME].columns, device=DEVICE)
    weight = whole.weights[NAME]
    assert isinstance(weight, BsfpWeight)
    assert torch.equal(draft.weights[NAME].product(x), weight.draft.product(x))
    loaded = GpuPackage(mxfp4, DEVICE, level="draft")
    with Package(mxfp4) as package:
        record = next(each for each in package.manifest.tensors if each.name == NAME)
        held = package.mxfp4(record)
        values = decode_mxfp4(held.codes, held.scales, held.shape)
    assert np.array_equal(loaded.weights[NAME].rebuild().cpu().numpy(), values)


def test_one_wrong_byte_is_found_on_the_way(bsfp: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in bsfp.iterdir():
        content = bytearray(file.read_bytes())
        if file.name == "bsfp.safetensors":
            content[-5] ^= 1
        (damaged / file.name).write_bytes(content)
    with pytest.raises(PackageError, match=r"bsfp\.safetensors: SHA-256 \w{64}; the manifest says \w{64}\. .* damaged"):
        GpuPackage(damaged, DEVICE)


def test_a_package_that_does_not_fit_says_what_would(bsfp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda _: device.RESERVE_BYTES + 1000)
    message = rf"are needed on {DEVICE}(:0)?; 0\.27 GB are free\. The 4-bit draft alone is 0\.00 GB"
    with pytest.raises(ModelError, match=message):
        GpuPackage(bsfp, DEVICE)


def test_levels_that_are_not_there_are_refused(bsfp: Path, mxfp4: Path) -> None:
    with pytest.raises(ModelError, match="the target of an mxfp4 package is its 16-bit source; a BSFP package is"):
        GpuPackage(mxfp4, DEVICE)
    with pytest.raises(ModelError, match="level 'both'; target or draft is required"):
        GpuPackage(bsfp, DEVICE, level="both")  # type: ignore[arg-type]
