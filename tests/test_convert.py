"""Whole conversions of tensors of every kind, and what the packages hold."""

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import torch
from checkpoints import write_safetensors, write_tiny_llama
from packages import files_of, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import prepare
from mxconv.errors import CheckpointError
from mxconv.package.manifest import Manifest, read_manifest
from mxconv.package.package import Package
from mxconv.verify import verify

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}


def zoo(dtype: str) -> dict[str, np.ndarray]:
    """Matrices of awkward widths, heights and contents, and tensors that are none."""
    rng = np.random.default_rng(1)

    def gaussian(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) * 0.02

    outlier, scaled, specials = gaussian(40, 128), gaussian(40, 64), gaussian(16, 128)
    outlier[7, 100] = 2.4062
    scaled *= 2.0 ** -(np.arange(40) % 11)[:, None]
    specials[0, :4] = 0.0, -0.0, 6e-8, -6e-8
    floats = {
        "model.embed_tokens.weight": gaussian(96, 64),
        "lm_head.weight": gaussian(96, 64),
        "column.weight": gaussian(5, 1),
        "row.weight": gaussian(1, 300),
        "odd.weight": gaussian(33, 172),
        "prime.weight": gaussian(17, 257),
        "zero.weight": np.zeros((16, 32)),
        "minus.weight": -np.zeros((3, 5)),
        "outlier.weight": outlier,
        "scaled.weight": scaled,
        "specials.weight": specials,
        "norm.weight": gaussian(64),
        "conv.weight": gaussian(2, 3, 4),
        "scalar": gaussian(1)[0],
        "empty.weight": np.zeros((0, 8)),
        "hollow.weight": np.zeros((4, 0)),
    }
    others = {
        "positions": np.arange(7),
        "table": np.arange(12, dtype=np.int32).reshape(3, 4),
        "mask": np.eye(3, dtype=np.bool_),
        "epsilon": np.float64(1e-5),
    }
    return {name: np.asarray(values).astype(DTYPES[dtype]) for name, values in floats.items()} | {
        name: np.asarray(values) for name, values in others.items()
    }


def statuses(package: Path, source: Path) -> set[str]:
    """Verify a package in both ways, and open all of its shards with the safetensors library."""
    for path in package.rglob("*.safetensors"):
        with safetensors.safe_open(path, "np") as file:
            assert file.keys()
    alone = verify(package)
    assert alone.ok, alone
    with open_checkpoint(source) as checkpoint:
        compared = verify(package, checkpoint)
        assert len(compared.tensors) == len(checkpoint.tensors)
    assert compared.ok, compared
    return {tensor.status for tensor in compared.tensors}


def rebuilt(package: Path) -> dict[str, bytes]:
    """Every tensor's bytes, from the package alone."""
    with Package(package) as opened:
        return {
            record.name: (
                opened.bsfp(record).target_rows(0, record.shape[0])
                if record.codec == "bsfp"
                else opened.kept(record).array()
            ).tobytes()
            for record in opened.manifest.tensors
        }


def record_of(manifest: Manifest, name: str) -> tuple[str, str]:
    record = next(record for record in manifest.tensors if record.name == name)
    return record.codec, record.reason


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("BF16", {"codec": "mxfp4"}),
        ("F16", {"codec": "mxfp4", "scale_rule": "even", "lm_head": "keep"}),
        ("BF16", {"codec": "mxfp4", "scale_rule": "ceil", "skip": ("odd.*",)}),
        ("F16", {"codec": "mxfp4", "scale_rule": "ggml", "max_shard_bytes": 4000}),
        ("BF16", {"codec": "mxfp4", "scale_rule": "mse", "num_threads": 3}),
        ("F16", {"codec": "mxfp4", "lm_head": "quantize"}),
        ("BF16", {"codec": "bsfp"}),
        ("F16", {"codec": "bsfp"}),
        ("BF16", {"codec": "bsfp", "segments": "paper"}),
        ("F16", {"codec": "bsfp", "residual_bits": 10, "lm_head": "keep"}),
        ("BF16", {"codec": "bsfp", "lm_head": "exact"}),
        ("F16", {"codec": "bsfp", "max_shard_bytes": 30_000, "skip": ("pri*", "row.weight")}),
    ],
)
def test_every_tensor_comes_back_bit_for_bit(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    tensors = zoo(dtype)
    source = write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    manifest = quantize(source, tmp_path / "p", **options)
    assert statuses(tmp_path / "p", source) == {"bit-exact"}
    assert rebuilt(tmp_path / "p") == {name: tensor.tobytes() for name, tensor in tensors.items()}
    assert manifest.lossless and manifest.to_bytes() == read_manifest(tmp_path / "p").to_bytes()
    for record in manifest.tensors:
        assert record.sha256 == hashlib.sha256(tensors[record.name].tobytes()).hexdigest()
    assert record_of(manifest, "positions") == ("keep", "not a matrix")
    head = {"mxfp4": "mxint8", "bsfp": "bsfp"}[options["codec"]]
    head = {"keep": "keep", "quantize": options["codec"], "exact": "bsfp"}.get(options.get("lm_head", ""), head)
    assert record_of(manifest, "lm_head.weight")[0] == head
    assert manifest.options.lm_head == options.get("lm_head", {"mxfp4": "int8", "bsfp": "quantize"}[options["codec"]])
    if "skip" in options:
        assert {record.name for record in manifest.tensors if record.reason.startswith("--skip")} in (
            {"odd.weight"},
            {"prime.weight", "row.weight"},
        )


@pytest.mark.parametrize(("codec", "tied", "num_shards"), [("mxfp4", True, 3), ("bsfp", False, 1)])
def test_a_model_folder_converts_with_its_companions_unchanged(
    tmp_path: Path, codec: str, tied: bool, num_shards: int
) -> None:
    source = write_tiny_llama(tmp_path / "m", num_shards=num_shards, tie_word_embeddings=tied, hidden_size=32)
    (source / "LICENSE").write_text("terms")
    (source / "notes.md").write_text("not needed")
    manifest = quantize(source, tmp_path / "p", codec=codec, **({"segments": "paper"} if codec == "bsfp" else {}))
    assert statuses(tmp_path / "p", source) == {"bit-exact"}
    files = files_of(tmp_path / "p")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "LICENSE"):
        assert files[name] == (source / name).read_bytes()
    assert "notes.md" not in files
    assert {record.path for record in manifest.files} == set(files) - {"mxconv.json"}
    assert manifest.tokenizer is not None and manifest.tokenizer.vocab_size == 96
    assert manifest.tokenizer.sha256 == hashlib.sha256(files["tokenizer.json"]).hexdigest()
    embedding = record_of(manifest, "model.embed_tokens.weight")[0]
    assert embedding == ({"mxfp4": "mxint8", "bsfp": "bsfp"}[codec] if tied else "keep")
    recorded = {record.path: record.sha256 for record in manifest.source.files}
    originals = [*source.glob("*.safetensors"), *source.glob("*.index.json")]
    assert recorded == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in originals}


def test_a_referenced_target_stays_where_it_is_and_only_the_source_proves_it(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m")
    manifest = quantize(source, tmp_path / "p", target="reference")
    assert not manifest.lossless
    assert (manifest.levels[0].location, manifest.levels[0].files) == ("source", [])
    assert "model.safetensors" not in files_of(tmp_path / "p")
    alone = verify(tmp_path / "p")
    assert alone.ok and not alone.lossless
    assert {tensor.status for tensor in alone.tensors} == {"lossy"}  # the draft alone
    assert statuses(tmp_path / "p", source) == {"derived", "kept"}


@pytest.mark.parametrize(
    ("codec", "option", "dtype"), [("mxfp4", "bf16", "BF16"), ("bsfp", "bf16", "BF16"), ("bsfp", "fp16", "F16")]
)
def test_f32_is_rounded_once_to_nearest_even_and_recorded(tmp_path: Path, codec: str, option: str, dtype: str) -> None:
    tensors = {name: tensor for name, tensor in zoo("F32").items() if name != "epsilon"}
    source = write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    manifest = quantize(source, tmp_path / "p", codec=codec, dtype=option)
    assert statuses(tmp_path / "p", source) == {"bit-exact"}
    assert manifest.source.cast and manifest.source.dtype == dtype and manifest.lossless
    torch_dtype = torch.bfloat16 if option == "bf16" else torch.float16
    for name, content in rebuilt(tmp_path / "p").items():
        rounded = tensors[name]
        if rounded.dtype == np.float32:  # torch is the oracle for the rounding
            rounded = torch.from_numpy(rounded.copy()).to(torch_dtype).view(torch.int16).numpy()
        assert content == rounded.tobytes(), name


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_bin_checkpoint_converts_to_safetensors_strides_and_all(tmp_path: Path, codec: str) -> None:
    rng = torch.Generator().manual_seed(0)
    wide = torch.randn(48, 40, generator=rng).to(torch.bfloat16)
    tensors = {"a.weight": wide, "b.weight": wide.T, "norm.weight": torch.ones(40, dtype=torch.bfloat16)}
    source = tmp_path / "m"
    source.mkdir()
    torch.save(tensors, source / "pytorch_model.bin")
    manifest = quantize(source, tmp_path / "p", codec=codec)
    sha256 = hashlib.sha256((source / "pytorch_model.bin").read_bytes()).hexdigest()
    assert [(record.path, record.sha256) for record in manifest.source.files] == [("pytorch_model.bin", sha256)]
    assert statuses(tmp_path / "p", source) == {"bit-exact"}
    expected = {name: tensor.contiguous().view(torch.int16).numpy().tobytes() for name, tensor in tensors.items()}
    assert rebuilt(tmp_path / "p") == expected
    assert not list((tmp_path / "p").glob("*.bin"))


@pytest.mark.parametrize(("kind", "found"), [("bin", "a .bin checkpoint"), ("f32", "F32 weights")])
def test_what_is_no_16_bit_safetensors_cannot_be_referenced(tmp_path: Path, kind: str, found: str) -> None:
    source = tmp_path / "m"
    source.mkdir()
    if kind == "bin":
        torch.save({"w": torch.ones(4, 4, dtype=torch.float16)}, source / "pytorch_model.bin")
    else:
        write_safetensors(source / "model.safetensors", {"w": np.ones((4, 4), np.float32)})
    with pytest.raises(CheckpointError) as caught:
        quantize(source, tmp_path / "p", target="reference", dtype=None if kind == "bin" else "bf16")
    assert str(caught.value) == (f"{source}: {found}; only 16-bit safetensors can be referenced. Use --target include.")


@pytest.mark.parametrize(("dtype", "segments"), [("BF16", "fitted"), ("F16", "fitted"), ("BF16", "paper")])
def test_rescaled_outliers_are_not_lossless_and_verify_says_by_how_much(
    tmp_path: Path, dtype: str, segments: str
) -> None:
    tensors = {name: zoo(dtype)[name] for name in ("outlier.weight", "odd.weight", "norm.weight")}
    source = write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    manifest = quantize(source, tmp_path / "p", codec="bsfp", outliers="rescale", segments=segments)
    assert not manifest.lossless
    assert statuses(tmp_path / "p", source) == {"bit-exact", "lossy"}
    with open_checkpoint(source) as checkpoint:
        verification = verify(tmp_path / "p", checkpoint)
    assert verification.ok and not verification.lossless and verification.num_bit_exact == 2
    by_name = {tensor.name: tensor for tensor in verification.tensors}
    weights = tensors["outlier.weight"]
    found = np.frombuffer(rebuilt(tmp_path / "p")["outlier.weight"], weights.dtype).reshape(weights.shape)
    error = np.abs(found.astype(np.float64) - weights.astype(np.float64)).max()
    assert by_name["outlier.weight"].max_abs_error == error
    assert 0 < error < 2.4 * 2.0 ** (-7 if dtype == "BF16" else -10)
    assert by_name["odd.weight"].max_abs_error == 0.0


def test_a_dry_run_knows_the_package_without_writing(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m")
    for codec in ("mxfp4", "bsfp"):
        with open_checkpoint(source) as checkpoint:
            preparation = prepare(checkpoint, QuantizeOptions(codec=codec))  # type: ignore[arg-type]
        assert not (tmp_path / "p").exists() and not (tmp_path / "p.partial").exists()
        manifest = quantize(source, tmp_path / codec, codec=codec)
        assert preparation.is_lossless is manifest.lossless is True
        assert preparation.bits_per_weight == manifest.bits_per_weight
        sizes = {record.path: record.num_bytes for record in manifest.files}
        assert {s.file_name: s.num_bytes for s in preparation.layout.shards}.items() <= sizes.items()


def test_progress_of_every_stage_ends_at_its_total(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m")
    last: dict[str, tuple[int, int]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        assert last.get(stage, (0, total))[0] <= done <= total
        last[stage] = done, total

    quantize(source, tmp_path / "p", progress, codec="bsfp", segments="paper")
    assert last.keys() == {"hash source", "survey", "encode", "hash package"}
    assert all(done == total for done, total in last.values())


def test_an_odd_vocabulary_size_in_the_configuration_is_recorded_as_unknown(tmp_path: Path) -> None:
    for number, vocab_size in enumerate([True, -1, 2**63, "many"]):
        source = write_tiny_llama(tmp_path / f"m{number}", hidden_size=32)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | {"vocab_size": vocab_size}))
        tokenizer = quantize(source, tmp_path / f"p{number}").tokenizer
        assert tokenizer is not None and tokenizer.vocab_size == 0
