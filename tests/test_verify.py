"""What `verify` finds, and what it says."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors, write_tiny_llama
from packages import compare, forge, patch_array, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import PackageError
from mxconv.package.manifest import read_manifest
from mxconv.verify import TensorVerification, Verification, verify, write_certificate

MATRIX = "model.layers.0.mlp.up_proj.weight"
CODECS: dict[str, dict[str, Any]] = {"mxfp4": {"codec": "mxfp4"}, "bsfp": {"codec": "bsfp", "segments": "paper"}}
each_codec = pytest.mark.parametrize("codec", list(CODECS))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "m", hidden_size=32)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its package in each codec, to be read only."""
    folder = tmp_path_factory.mktemp("made")
    for codec, options in CODECS.items():
        quantize(source, folder / codec, **options)
    return {codec: folder / codec for codec in CODECS}


@pytest.fixture(params=list(CODECS))
def package(made: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    path: Path = made[request.param]
    return path


def failures(verification: Verification) -> dict[str, TensorVerification]:
    assert not verification.ok
    return {t.name: t for t in verification.tensors if t.status in ("mismatch", "missing")}


def change_source(source: Path, other: Path, change: Any) -> Path:
    """Another checkpoint with changed tensors. The first one keeps its bytes: a package may be linked to them."""
    tensors = safetensors.numpy.load_file(source / "model.safetensors")
    change(tensors)
    write_safetensors(other / "model.safetensors", tensors)
    (other / "config.json").write_bytes((source / "config.json").read_bytes())
    return other


def test_one_changed_weight_of_the_source_is_found_and_measured(tmp_path: Path, source: Path, package: Path) -> None:

    def change(tensors: dict[str, Any]) -> None:
        tensors[MATRIX][3, 5] += 1

    found = failures(compare(package, change_source(source, tmp_path / "other", change)))
    assert list(found) == [MATRIX]
    assert found[MATRIX].status == "mismatch"
    assert found[MATRIX].max_abs_error == pytest.approx(1, rel=0.05)
    assert "the source is not the one that was converted" in found[MATRIX].detail
    assert found[MATRIX].sha256_source != found[MATRIX].sha256_reconstructed


@each_codec
def test_a_sign_of_zero_is_a_difference(tmp_path: Path, codec: str) -> None:
    folder = tmp_path / "m"
    write_safetensors(folder / "model.safetensors", {"w": np.zeros((4, 4), np.float16)})
    (folder / "config.json").write_text("{}")
    quantize(folder, tmp_path / "p", **CODECS[codec])

    def change(tensors: dict[str, Any]) -> None:
        tensors["w"][1, 1] = -0.0

    found = failures(compare(tmp_path / "p", change_source(folder, tmp_path / "other", change)))
    assert found["w"].max_abs_error == 0.0


def test_a_nan_or_infinity_in_the_source_is_an_infinite_error_and_no_crash(
    tmp_path: Path, source: Path, package: Path
) -> None:

    def change(tensors: dict[str, Any]) -> None:
        tensors[MATRIX][0, 0] = np.nan
        tensors["model.norm.weight"][1] = np.inf

    found = failures(compare(package, change_source(source, tmp_path / "other", change)))
    assert found["model.norm.weight"].max_abs_error == float("inf")
    if package.name == "bsfp":
        assert found[MATRIX].max_abs_error == float("inf")
    else:
        assert found[MATRIX].detail == "value at index (0, 0) is nan; MX formats need finite values."


def test_missing_additional_and_misshapen_tensors_are_named(tmp_path: Path, source: Path, package: Path) -> None:

    def change(tensors: dict[str, Any]) -> None:
        del tensors[MATRIX]
        tensors["extra.weight"] = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = tensors["lm_head.weight"].T.copy()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float16)

    found = failures(compare(package, change_source(source, tmp_path / "other", change)))
    assert {name: (tensor.status, tensor.detail) for name, tensor in found.items()} == {
        MATRIX: ("missing", "not in the source"),
        "extra.weight": ("missing", "in the source only"),
        "lm_head.weight": ("mismatch", "source has BF16 [32, 96], package BF16 [96, 32]"),
        "model.norm.weight": ("mismatch", "source has F16 [32], package BF16 [32]"),
    }


@each_codec
def test_padding_is_part_of_what_is_compared(tmp_path: Path, codec: str) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": np.full((1, 1), 0.5, ml_dtypes.bfloat16)})
    quantize(path, tmp_path / "p", **CODECS[codec])
    patch_array(tmp_path / "p" / f"{codec}.safetensors", "w.codes", -1, b"\x11")
    forge(tmp_path / "p")
    assert verify(tmp_path / "p").ok  # no weight is there
    assert failures(compare(tmp_path / "p", path))["w"].detail == "w.codes differs from what the source encodes to"


def test_a_loss_counts_only_where_the_manifest_declares_it(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float16)
    weights[0, 0] = 3.3
    path = write_safetensors(tmp_path / "m.safetensors", {"w": weights})
    quantize(path, tmp_path / "p", codec="bsfp", outliers="rescale")
    alone = verify(tmp_path / "p")
    assert alone.ok and not alone.lossless and [t.status for t in alone.tensors] == ["lossy"]

    def deny(members: dict[str, Any]) -> None:
        members["lossless"] = True
        members["tensors"][0]["segments"]["rescale_factor"] = 1.0

    forge(tmp_path / "p", deny)
    assert failures(verify(tmp_path / "p"))["w"].status == "mismatch"


@each_codec
def test_any_number_of_threads_finds_the_same(tmp_path: Path, source: Path, made: dict[str, Path], codec: str) -> None:
    shutil.copytree(made[codec], tmp_path / "p")
    patch_array(tmp_path / f"p/{codec}.safetensors", f"{MATRIX}.codes", 0, b"\xff\x11")
    other = write_tiny_llama(tmp_path / "other", hidden_size=32, seed=1)
    for against in (None, source, other):
        found = []
        for num_threads in (1, 3):
            with open_checkpoint(against or source) as checkpoint:
                found.append(verify(tmp_path / "p", checkpoint if against else None, num_threads=num_threads))
        assert found[0].damaged_files == [f"{codec}.safetensors"]
        assert found[0] == found[1]


def test_a_certificate_is_stored_and_the_package_stays_valid(
    tmp_path: Path, source: Path, made: dict[str, Path]
) -> None:
    shutil.copytree(made["mxfp4"], tmp_path / "p")
    write_certificate(tmp_path / "p", compare(tmp_path / "p", source))
    certificate = read_manifest(tmp_path / "p").certificate
    assert certificate is not None
    assert (certificate.source_compared, certificate.lossless, certificate.decode) == (True, True, None)
    assert certificate.num_tensors == certificate.num_bit_exact == 21
    assert verify(tmp_path / "p").lossless
    assert not (tmp_path / "p/mxconv.json.new").exists()


def test_a_failed_verification_is_not_written_down(tmp_path: Path, made: dict[str, Path]) -> None:
    shutil.copytree(made["mxfp4"], tmp_path / "p")
    (tmp_path / "p/config.json").write_bytes(b" " * (tmp_path / "p/config.json").stat().st_size)
    with pytest.raises(PackageError) as caught:
        write_certificate(tmp_path / "p", verify(tmp_path / "p"))
    assert str(caught.value) == (f"{tmp_path}/p: verification failed; only a good one is written down. Convert again.")
