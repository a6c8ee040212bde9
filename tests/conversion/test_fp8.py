"""FP8 sources: kept bit for bit, drafted in MXFP4, decoded as the 16-bit weights that they stand for."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from checkpoints import write_safetensors, write_tiny_tokenizer
from fp8_models import BLOCK, dequantize, write_fp8_model
from packages import check_exact, compare, forge, quantize

from mxconv.codecs.float16 import BF16
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.gguf_export import export_gguf
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.kernels.encoders import encode_mxfp4
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights

MATRIX = "model.layers.1.mlp.down_proj.weight"
FP8 = ml_dtypes.float8_e4m3fn


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Neither the rows nor the columns of its matrices are whole blocks."""
    folder = tmp_path_factory.mktemp("fp8") / "m"
    write_fp8_model(folder, hidden_size=80, intermediate_size=100, head_dim=20, vocab_size=96)
    write_tiny_tokenizer(folder / "tokenizer.json", 96)
    return folder


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def package(source: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Its package in each codec, to be read only."""
    path: Path = tmp_path_factory.mktemp("packages") / request.param
    quantize(source, path, codec=request.param)
    return path


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def test_bytes_and_scales_come_back_bit_for_bit(source: Path, package: Path) -> None:
    check_exact(package, source)
    records, codec = {record.name: record for record in read_manifest(package).tensors}, package.name
    matrix, scales = records[MATRIX], records[f"{MATRIX}_scale_inv"]
    expected = ("mxfp4", "matrix") if codec == "mxfp4" else ("keep", "FP8, which BSFP would make larger")
    assert (matrix.codec, matrix.reason, matrix.dtype) == (*expected, "F8_E4M3")
    assert matrix.scaled is not None and matrix.scaled.block == [BLOCK, BLOCK]
    assert (scales.codec, scales.reason, scales.dtype) == ("keep", "scales of FP8 blocks", "F32")
    assert records["lm_head.weight"].codec == {"mxfp4": "mxint8", "bsfp": "bsfp"}[codec]


def test_the_draft_is_encoded_from_the_weights_that_the_bytes_stand_for(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    weights = dequantize(tensors_of(source))
    with Package(tmp_path / "p") as package:
        records = [record for record in package.manifest.tensors if record.scaled is not None]
        assert len(records) == 2 * 7
        for record in records:
            patterns = weights[record.name].view(torch.int16).numpy().view(np.uint16)
            assert np.array_equal(package.fp8(record).patterns(0, len(patterns)), patterns)
            stored, (codes, scales) = package.mxfp4(record), encode_mxfp4(patterns, BF16)
            assert np.array_equal(stored.codes, codes) and np.array_equal(stored.scales, scales)


@pytest.mark.parametrize(("codec", "target"), [("mxfp4", "include"), ("mxfp4", "reference"), ("bsfp", None)])
def test_logits_are_those_of_the_decoded_checkpoint(
    source: Path, tmp_path: Path, codec: str, target: str | None
) -> None:
    decoded = tmp_path / "decoded"
    decoded.mkdir()
    safetensors.torch.save_file(dequantize(tensors_of(source)), decoded / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (decoded / name).write_bytes((source / name).read_bytes())
    quantize(source, tmp_path / "p", codec=codec, target=target)
    quantize(decoded, tmp_path / "q", codec="mxfp4")
    found = []
    for path, levels in ((tmp_path / "p", ["target", codec]), (tmp_path / "q", ["target", "mxfp4"])):
        with LoadedPackage(path, levels) as loaded:
            ids = loaded.tokenizer.encode("what is kept")
            decoders = [level.decoder for level in loaded.levels]
            assert all(decoder is not None for decoder in decoders)
            found.append([d.forward(ids, KVCache(d.config)) for d in decoders if d is not None])
    assert np.array_equal(found[0][0], found[1][0])
    if codec == "mxfp4":
        assert np.array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e8m0fnu])
def test_scales_of_every_dtype_are_read(tmp_path: Path, dtype: Any) -> None:
    codes = np.random.default_rng(0).integers(0, 0x7F, (130, 40)).astype(np.uint8)
    scales = np.array([[0.5], [0.125]]).astype(dtype)
    path = write_safetensors(tmp_path / "m.safetensors", {"a.weight": codes.view(FP8), "a.weight_scale_inv": scales})
    quantize(path, tmp_path / "p")
    assert compare(tmp_path / "p", path).ok
    with Package(tmp_path / "p") as package:
        record = next(record for record in package.manifest.tensors if record.scaled is not None)
        found = package.fp8(record).patterns(120, 130)
    values = codes.view(FP8).astype(np.float32) * np.repeat([0.5, 0.125], 128)[:130, None]
    assert np.array_equal(found.view(ml_dtypes.bfloat16).astype(np.float32), values[120:])


def write_matrix(path: Path, scales: np.ndarray | None, codes: np.ndarray | None = None) -> Path:
    tensors: dict[str, Any] = {"a.weight": (np.zeros((130, 40), np.uint8) if codes is None else codes).view(FP8)}
    if scales is not None:
        tensors["a.weight_scale_inv"] = scales
    return write_safetensors(path, tensors | {"lm_head.weight": np.ones((16, 32), np.float16)})


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        quantize(path, path.with_name("p"), **options)
    assert not path.with_name("p").exists() and not path.with_name("p.partial").exists()
    return str(caught.value)


def test_scales_that_do_not_belong_to_the_matrix_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    end = "a scale for each 128 x 128 weights. Check quantization_config.weight_block_size in config.json."
    assert error_of(write_matrix(path, np.ones((1, 1), np.float32))) == (
        f"{path}: tensor a.weight_scale_inv is F32 [1, 1]; F32, BF16, F16, F8_E8M0 [2, 1] is required, {end}"
    )
    assert error_of(write_matrix(path, np.ones((2, 1)))) == (
        f"{path}: tensor a.weight_scale_inv is F64 [2, 1]; F32, BF16, F16, F8_E8M0 [2, 1] is required, {end}"
    )


def test_bytes_without_block_scales_are_refused_unless_they_are_skipped(tmp_path: Path) -> None:
    path = write_matrix(tmp_path / "m.safetensors", None)
    assert "tensor a.weight has dtype F8_E4M3, which is not supported; BF16 or F16" in error_of(path)
    quantize(path, tmp_path / "p", skip=("a.weight",))
    assert compare(tmp_path / "p", path).ok


def test_a_manifest_whose_scales_do_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")

    def change(**members: Any) -> str:
        def edit(manifest: dict[str, Any]) -> None:
            record = next(record for record in manifest["tensors"] if record["name"] == MATRIX)
            record["scaled"] = {"by": f"{MATRIX}_scale_inv", "block": [BLOCK, BLOCK]} | members

        forge(tmp_path / "p", edit)
        with pytest.raises(PackageError) as caught:
            Package(tmp_path / "p")
        return str(caught.value)

    assert "tensor nothing is missing; FP8 weights and scales are required" in change(by="nothing")
    assert "[2, 1] is required, a scale for each 64 x 128 weights" in change(block=[64, 128])
    assert "greater than or equal to 1" in change(block=[0, 128])


def test_inspect_counts_the_decoded_weights(source: Path, package: Path) -> None:
    for path in (source, package):
        with open_weights(str(path)) as weights:
            (found,) = inspect_weights(weights, tensor_glob=MATRIX).tensors
        assert (found.dtype, found.note) == ("F8_E4M3", "FP8, decoded to BF16")
        assert found.exponents is not None and found.drafts is not None
        largest = dequantize(tensors_of(source))[MATRIX].abs().max().item()
        assert found.exponents.max_abs == largest


def test_the_target_is_exported_as_it_was_and_nothing_else(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    export_safetensors(tmp_path / "p", tmp_path / "plain")
    expected, found = tensors_of(source), tensors_of(tmp_path / "plain")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name].view(torch.uint8), found[name].view(torch.uint8)) for name in expected)
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [BLOCK, BLOCK]
    refused = {
        "a draft in 16 bits": lambda: export_safetensors(tmp_path / "p", tmp_path / "out", level="draft"),
        "GGUF": lambda: export_gguf(tmp_path / "p", tmp_path / "out"),
        "compressed-tensors": lambda: export_compressed_tensors(tmp_path / "p", tmp_path / "out"),
    }
    for what, export in refused.items():
        with pytest.raises(MxconvError, match=rf"is F8_E4M3 with block scales; {what} is made of 16 bits alone"):
            export()
        assert not (tmp_path / "out").exists()
