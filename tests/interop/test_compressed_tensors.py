"""The export as transformers and compressed-tensors see it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write_safetensors, write_tiny_llama
from dequantized import dequantized
from packages import files_of, forge, quantize
from safetensors.numpy import load_file

from mxconv.errors import MxconvError, PackageError
from mxconv.interop.compressed_tensors import export_compressed_tensors

IDS = torch.arange(3, 40)[None]


def load(folder: Path, **options: Any) -> Any:
    """Others' code on our folder; nothing of mxconv is in between."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def in_16_bits(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "mxconv_export.json").read_text())["left_in_16_bits"]


@pytest.mark.parametrize("name", ["mxfp4", "pylib_mxfp4"])
def test_transformers_loads_the_export_with_our_weights_bit_for_bit(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    package = request.getfixturevalue(name)
    export_compressed_tensors(package, tmp_path / "export")
    dense = in_16_bits(tmp_path / "export")
    expected = dequantized(package)
    assert len(expected) > len(dense) > 0
    model = load(tmp_path / "export")
    model(IDS)  # compressed-tensors unpacks on the first forward pass
    weights = model.state_dict()
    for tensor, values in expected.items():
        if tensor not in dense:
            assert np.array_equal(weights[tensor].float().numpy(), values), tensor
    source = load(package)  # the target's files lie in an MXFP4 package
    for tensor, weight in source.state_dict().items():
        if tensor not in expected or tensor in dense:
            assert torch.equal(weights[tensor], weight), tensor


def test_the_library_reads_the_configuration_as_its_own_preset(llama: Path, tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.quantization.quant_scheme import MXFP4A16

    quantize(llama, tmp_path / "package", lm_head="quantize")
    export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    members = json.loads((tmp_path / "export" / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(members)
    scheme = parsed.config_groups["group_0"]
    assert scheme.weights == MXFP4A16["weights"]
    assert scheme.input_activations is None
    assert (parsed.format, parsed.quantization_status.value) == ("mxfp4-pack-quantized", "compressed")
    assert scheme.targets == ["lm_head", "Linear"]


def test_bytes_are_those_that_the_librarys_own_compressor_writes(tmp_path: Path) -> None:
    from oracles import mxfp4_by_compressed_tensors

    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=1)
    quantize(source, tmp_path / "package", scale_rule="even")
    export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    found = load_file(tmp_path / "export" / "model.safetensors")
    weight = load(source).get_parameter("model.layers.0.self_attn.q_proj.weight").detach().float().numpy()
    codes, scales = mxfp4_by_compressed_tensors(weight)
    name = "model.layers.0.self_attn.q_proj"
    assert np.array_equal(found[f"{name}.weight_scale"], scales)
    assert np.array_equal(found[f"{name}.weight_packed"], codes[:, 0::2] | codes[:, 1::2] << 4)


def test_what_cannot_be_packed_stays_in_16_bits_and_is_named(mxfp4: Path, tmp_path: Path) -> None:
    notes = export_compressed_tensors(mxfp4, tmp_path / "export").notes
    ignored = json.loads((tmp_path / "export" / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", *(f"model.layers.{layer}.mlp.down_proj" for layer in (0, 1))]
    reasons = in_16_bits(tmp_path / "export")
    assert reasons == {
        "lm_head.weight": "the draft's output head has 8 bits, which this format has no place for",
        **{f"{name}.weight": "in_features 172 is no multiple of 32" for name in ignored[1:]},
    }
    assert sorted(notes) == sorted(f"{name} is left in 16 bits: {reason}." for name, reason in reasons.items())


def test_a_kept_matrix_is_ignored(llama: Path, tmp_path: Path) -> None:
    quantize(llama, tmp_path / "package", skip=("*.0.self_attn.q_proj.weight",), lm_head="keep")
    export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    members = json.loads((tmp_path / "export" / "config.json").read_text())["quantization_config"]
    assert {"lm_head", "model.layers.0.self_attn.q_proj"} < set(members["ignore"])
    assert members["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert load(tmp_path / "export")(IDS).logits.isfinite().all()


def test_a_float16_model_runs_dequantized_and_says_so(tmp_path: Path) -> None:
    from transformers import CompressedTensorsConfig

    source = write_tiny_llama(tmp_path / "source", dtype="F16", num_hidden_layers=1)
    quantize(source, tmp_path / "package", lm_head="quantize")
    export = export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    assert export.notes[-1].endswith("quantization_config=CompressedTensorsConfig(dequantize=True)).")
    with pytest.warns(UserWarning, match="already has a `quantization_config`"):
        model = load(tmp_path / "export", quantization_config=CompressedTensorsConfig(dequantize=True))
    assert model(IDS).logits.dtype == torch.float16
    values = dequantized(tmp_path / "package")["lm_head.weight"]
    assert np.array_equal(model.lm_head.weight.detach().float().numpy(), values)


def test_a_referenced_target_is_read_from_its_source(llama: Path, mxfp4: Path, tmp_path: Path) -> None:
    quantize(llama, tmp_path / "package", target="reference")
    for package in (mxfp4, tmp_path / "package"):
        export_compressed_tensors(package, tmp_path / f"export-{package.name}")
    one, other = ((tmp_path / f"export-{name}" / "model.safetensors").read_bytes() for name in ("mxfp4", "package"))
    assert one == other


def test_a_bsfp_package_has_no_such_format(bsfp: Path, tmp_path: Path) -> None:
    message = r"bsfp: its draft is bsfp, which compressed-tensors has no format for; MXFP4 is required\. Convert"
    with pytest.raises(MxconvError, match=message):
        export_compressed_tensors(bsfp, tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_a_configuration_is_refused(llama: Path, tmp_path: Path) -> None:
    quantize(llama / "model.safetensors", tmp_path / "package")
    with pytest.raises(MxconvError, match=r"has no config\.json; other libraries need one\. Convert the model's"):
        export_compressed_tensors(tmp_path / "package", tmp_path / "export")


def test_a_package_with_nothing_to_pack_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_safetensors(source / "model.safetensors", {"a.weight": np.ones((16, 40), np.float16)})
    (source / "config.json").write_text("{}")
    quantize(source, tmp_path / "package")
    with pytest.raises(MxconvError, match="none of its MXFP4 tensors can be packed; at least one matrix"):
        export_compressed_tensors(tmp_path / "package", tmp_path / "export")


def test_nothing_is_overwritten_and_force_replaces_exports_only(mxfp4: Path, tmp_path: Path) -> None:
    output = tmp_path / "export"
    first = export_compressed_tensors(mxfp4, output)
    assert set(first.files) == set(files_of(output))
    assert first.num_bytes == sum(len(content) for content in files_of(output).values())
    with pytest.raises(PackageError, match="export: exists; nothing is overwritten"):
        export_compressed_tensors(mxfp4, output)
    (output / "config.json").write_text("{}")
    export_compressed_tensors(mxfp4, output, force=True)
    assert "quantization_config" in (output / "config.json").read_text()
    (output / "mxconv_export.json").unlink()
    before = files_of(output)
    with pytest.raises(PackageError, match=r"exists and is no export; --force replaces exports only"):
        export_compressed_tensors(mxfp4, output, force=True)
    assert files_of(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_refused_place_is_named(mxfp4: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackageError, match=r"cannot be written .*; a writable place"):
        export_compressed_tensors(mxfp4, tmp_path / "file" / "export")


def test_a_damaged_target_stops_the_export_and_leaves_nothing(llama: Path, tmp_path: Path) -> None:
    quantize(llama, tmp_path / "package")

    def other_hash(manifest: dict[str, Any]) -> None:
        next(t for t in manifest["tensors"] if t["name"] == "model.norm.weight")["sha256"] = "0" * 64

    forge(tmp_path / "package", other_hash)
    with pytest.raises(PackageError, match=r"tensor model\.norm\.weight: SHA-256 \w+\.\.\.; the recorded 0000"):
        export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["package"]


def test_the_configuration_tells_the_dtype_and_its_own_quantizer_alone(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype="F32", num_hidden_layers=1)
    left_over = {"quantization_config": {"quant_method": "gptq"}, "quantization": {"bits": 4}}
    config = json.loads((source / "config.json").read_text()) | left_over
    (source / "config.json").write_text(json.dumps(config))
    quantize(source, tmp_path / "package", dtype="bf16")
    export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    found = json.loads((tmp_path / "export" / "config.json").read_text())
    assert found["torch_dtype"] == "bfloat16" and "quantization" not in found
    assert found["quantization_config"]["quant_method"] == "compressed-tensors"
