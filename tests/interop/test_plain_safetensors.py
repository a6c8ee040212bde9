"""Plain weights, stacks of experts too, by others' readers: bit for bit, in flat memory."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import write_safetensors, write_tiny_llama
from dequantized import dequantized
from packages import files_of, patch_array, quantize
from safetensors import safe_open
from stacked_models import write_random_model

from mxconv.checkpoint.safetensors_header import format_header
from mxconv.errors import MxconvError, PackageError
from mxconv.interop import exported
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.plain_safetensors import export_safetensors

STACKS = {
    "gpt_oss": "model.layers.0.mlp.experts.down_proj",
    "granitemoe": "model.layers.0.block_sparse_moe.input_linear.weight",
}


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every tensor, read by the safetensors library."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                content = file.get_tensor(name).contiguous().flatten().view(torch.uint8).numpy().tobytes()
                found[name] = hashlib.sha256(content).hexdigest()
    return found


SOURCES: dict[str, Callable[[Path], Path]] = {
    "F16": lambda folder: write_tiny_llama(folder, dtype="F16", num_hidden_layers=1),
    "BF16": lambda folder: write_tiny_llama(folder, num_hidden_layers=1),
    **{
        family: partial(write_random_model, model_type=family, num_hidden_layers=1, hidden_size=64, head_dim=16)
        for family in STACKS
    },
}


@pytest.mark.parametrize(
    ("codec", "kind"), [("mxfp4", "F16"), ("bsfp", "BF16"), ("bsfp", "F16"), *(("bsfp", family) for family in STACKS)]
)
def test_the_target_comes_back_bit_for_bit(codec: str, kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path / "source")
    quantize(source, tmp_path / "package", codec=codec)
    export = export_safetensors(tmp_path / "package", tmp_path / "export")
    expected = hashes(source)
    assert hashes(tmp_path / "export") == expected
    assert export.num_tensors == len(expected)
    assert (tmp_path / "export" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert json.loads((tmp_path / "export" / "mxconv_export.json").read_text())["bit_exact"] is True


def test_a_large_export_comes_in_shards_with_an_index(
    bsfp: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(exported, "DEFAULT_MAX_SHARD_BYTES", 50_000)
    export = export_safetensors(bsfp, tmp_path / "export")
    shards = [name for name in export.files if name.endswith(".safetensors")]
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    index = json.loads((tmp_path / "export" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(shards)
    assert hashes(tmp_path / "export") == hashes(llama)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_mxfp4_draft_is_written_exactly(mxfp4: Path, llama: Path, tmp_path: Path) -> None:
    export_safetensors(mxfp4, tmp_path / "export", level="draft")
    expected = dequantized(mxfp4)
    with safe_open(tmp_path / "export" / "model.safetensors", "pt") as draft:
        for name, values in expected.items():
            tensor = draft.get_tensor(name)
            assert tensor.dtype == torch.bfloat16
            assert np.array_equal(tensor.float().numpy(), values), name
    source, found = hashes(llama), hashes(tmp_path / "export")
    assert {name for name in source if source[name] != found[name]} == set(expected)


def test_a_bsfp_draft_needs_more_than_16_bits(bsfp: Path, tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r"its draft is bsfp, whose values need more than 16 bits; an MXFP4 draft"):
        export_safetensors(bsfp, tmp_path / "export", level="draft")


def test_draft_values_that_fp16_does_not_hold_are_refused(tmp_path: Path) -> None:
    """No FP16 weight has such a scale; a damaged or foreign package may."""
    source = write_tiny_llama(tmp_path / "source", dtype="F16", num_hidden_layers=1)
    quantize(source, tmp_path / "package")
    patch_array(tmp_path / "package" / "mxfp4.safetensors", "lm_head.weight.scales", 0, b"\x01" * 16)
    message = r"tensor lm_head\.weight: draft values that F16 does not hold; values that 16 bits hold exactly"
    with pytest.raises(MxconvError, match=message):
        export_safetensors(tmp_path / "package", tmp_path / "draft", level="draft")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["package", "source"]


def test_a_rescaled_package_says_that_it_is_not_exact_and_a_configuration_without_a_dtype_gets_one(
    tmp_path: Path,
) -> None:
    weights = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float16)
    weights[3, 5] = 40
    write_safetensors(tmp_path / "source/model.safetensors", {"a.weight": weights})
    (tmp_path / "source/config.json").write_text("{}")
    quantize(tmp_path / "source", tmp_path / "package", codec="bsfp", outliers="rescale")
    export_safetensors(tmp_path / "package", tmp_path / "export")
    assert json.loads((tmp_path / "export" / "mxconv_export.json").read_text())["bit_exact"] is False
    assert json.loads((tmp_path / "export/config.json").read_text()) == {"dtype": "float16"}


def test_an_export_is_replaced_with_force_alone_and_nothing_else_is(mxfp4: Path, tmp_path: Path) -> None:
    output = tmp_path / "export"
    first = export_safetensors(mxfp4, output)
    assert set(first.files) == set(files_of(output))
    assert first.num_bytes == sum(len(content) for content in files_of(output).values())
    with pytest.raises(PackageError, match="export: exists; nothing is overwritten"):
        export_safetensors(mxfp4, output)
    (output / "config.json").write_text("{}")
    export_safetensors(mxfp4, output, force=True)
    assert "model_type" in (output / "config.json").read_text()
    (output / "mxconv_export.json").unlink()
    before = files_of(output)
    with pytest.raises(PackageError, match=r"exists and is no export; --force replaces exports only"):
        export_safetensors(mxfp4, output, force=True)
    assert files_of(output) == before
    with pytest.raises(PackageError, match=r"cannot be written .*; a writable place"):
        export_safetensors(mxfp4, output / "config.json" / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


LEFT_OVER = {"quant_method": "gptq", "bits": 4, "group_size": 128}
DTYPES = {
    "both names": ({"torch_dtype": "float32", "dtype": "float32"}, {"torch_dtype": "DTYPE", "dtype": "DTYPE"}),
    "null": ({"torch_dtype": None}, {"torch_dtype": "DTYPE"}),
    "parts": (
        {"dtype": "float32", "text_config": {"dtype": "float32"}, "a": {"b": {"torch_dtype": "float32", "c": 1}}},
        {"dtype": "DTYPE", "text_config": {"dtype": "DTYPE"}, "a": {"b": {"torch_dtype": "DTYPE", "c": 1}}},
    ),
    "left over": ({"quantization_config": LEFT_OVER, "quantization": {"bits": 4}, "compression_config": {}}, {}),
    "left over in a part": ({"text_config": {"quantization_config": LEFT_OVER}}, {"text_config": {}}),
}


@pytest.mark.parametrize(("option", "name"), [("bf16", "bfloat16"), ("fp16", "float16")])
@pytest.mark.parametrize("kind", DTYPES)
def test_the_configuration_tells_the_dtype_and_no_quantizer(tmp_path: Path, kind: str, option: str, name: str) -> None:
    from transformers import AutoModelForCausalLM

    given, expected = DTYPES[kind]
    source = write_tiny_llama(tmp_path / "source", dtype="F32", num_hidden_layers=1)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | given))
    quantize(source, tmp_path / "package", dtype=option)
    assert (tmp_path / "package/config.json").read_bytes() == (source / "config.json").read_bytes()
    export_safetensors(tmp_path / "package", tmp_path / "export")
    found = json.loads((tmp_path / "export/config.json").read_text())
    unquantized = {key: value for key, value in (config | given).items() if not key.startswith(("quantiz", "compr"))}
    whole = unquantized | ({} if "torch_dtype" in given else {"torch_dtype": "DTYPE"}) | expected
    assert found == json.loads(json.dumps(whole).replace("DTYPE", name))
    if "part" not in kind:  # of no model
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype="auto")
        assert str(model.lm_head.weight.dtype) == f"torch.{name}"


def test_a_configuration_that_names_another_dtype_than_the_weights_have_is_mended(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=1)
    vision = {"vision_config": {"dtype": "float32"}, "torch_dtype": "float32", "text_config": {"dtype": "float32"}}
    config = json.loads((source / "config.json").read_text()) | vision
    (source / "config.json").write_text(json.dumps(config))
    quantize(source, tmp_path / "package", codec="bsfp")
    export_safetensors(tmp_path / "package", tmp_path / "export")
    # what no option rounded may have another dtype
    assert json.loads((tmp_path / "export/config.json").read_text()) == config | {
        "torch_dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16"},
    }


@pytest.fixture(scope="module", params=list(STACKS))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks") / request.param
    return write_random_model(folder, request.param, num_hidden_layers=1, hidden_size=64, head_dim=16)


@pytest.fixture(scope="module")
def package(source: Path) -> Path:
    quantize(source, source.with_name("package"))
    return source.with_name("package")


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


LIMIT = 75_000_000  # bytes
SHAPE = (14_336, 4096)
EXPORT = """
import resource, sys
from pathlib import Path
from mxconv.interop.compressed_tensors import export_compressed_tensors
from mxconv.interop.plain_safetensors import export_safetensors
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
export = {"mxfp4": export_compressed_tensors, "bsfp": export_safetensors}[sys.argv[1]]
export(Path(sys.argv[2]), Path(sys.argv[3]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_peak_memory_does_not_grow_with_the_model(codec: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    block = (np.random.default_rng(0).standard_normal((2048, SHAPE[1]), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    header, _ = format_header([("model.layers.0.mlp.up_proj.weight", "BF16", SHAPE)], {})
    with (source / "model.safetensors").open("xb") as file:
        file.write(header)
        for _ in range(SHAPE[0] // len(block)):
            file.write(block.tobytes())
    (source / "config.json").write_text("{}")
    quantize(source, tmp_path / "package", codec=codec)
    # a shell between: the kernel counts what a process was before its exec, and this one may have loaded a lot
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", EXPORT, codec]
    run = subprocess.run(
        [*command, str(tmp_path / "package"), str(tmp_path / "export")], check=True, capture_output=True, text=True
    )
    assert 2 * SHAPE[0] * SHAPE[1] > LIMIT
    assert int(run.stdout) < LIMIT
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
