"""The export as transformers and compressed-tensors see it, of every kind of family too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write_safetensors, write_tiny_llama
from dequantized import dequantized
from mtp_models import NEXTN, MtpOracle
from packages import quantize
from packed_families import PACKED, SIZES
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from mxconv.errors import MxconvError
from mxconv.interop.compressed_tensors import export_compressed_tensors

checkpoints = pytest.importorskip("family_checkpoints", reason="transformers makes these checkpoints")
IDS = torch.arange(3, 40)[None]
DEQUANTIZED = CompressedTensorsConfig(dequantize=True)


def load(folder: Path, **options: Any) -> Any:
    """Others' code on our folder; nothing of mxconv is in between."""
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


def test_what_has_no_such_format_is_refused(bsfp: Path, llama: Path, tmp_path: Path) -> None:
    quantize(llama / "model.safetensors", tmp_path / "file")
    write_safetensors(tmp_path / "source/model.safetensors", {"a.weight": np.ones((16, 40), np.float16)})
    (tmp_path / "source/config.json").write_text("{}")
    quantize(tmp_path / "source", tmp_path / "nothing")
    checkpoints.write_checkpoint(checkpoints.make_model("qwen3_moe", **SIZES), tmp_path / "experts")
    quantize(tmp_path / "experts", tmp_path / "moe")
    for package, words in (
        (bsfp, r"bsfp: its draft is bsfp, which compressed-tensors has no format for; MXFP4 is required\. Convert"),
        (tmp_path / "file", r"has no config\.json; other libraries need one\. Convert the model's"),
        (tmp_path / "nothing", "none of its MXFP4 tensors can be packed; at least one matrix"),
        (tmp_path / "moe", r"experts\.0\.down_proj\.weight \[64, 48\] of an expert cannot be packed as"),
    ):
        with pytest.raises(MxconvError, match=words):
            export_compressed_tensors(package, tmp_path / "export")
    assert not list(tmp_path.glob("*export*"))


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
    found = load_arrays(tmp_path / "export" / "model.safetensors")
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


def test_a_kept_matrix_is_ignored_and_the_quantizer_is_the_exports_own(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype="F32", num_hidden_layers=1)
    left_over = {"quantization_config": {"quant_method": "gptq"}, "quantization": {"bits": 4}}
    config = json.loads((source / "config.json").read_text()) | left_over
    (source / "config.json").write_text(json.dumps(config))
    quantize(source, tmp_path / "package", skip=("*.0.self_attn.q_proj.weight",), lm_head="keep", dtype="bf16")
    export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    found = json.loads((tmp_path / "export" / "config.json").read_text())
    assert found["torch_dtype"] == "bfloat16" and "quantization" not in found
    members = found["quantization_config"]
    assert members["quant_method"] == "compressed-tensors"
    assert {"lm_head", "model.layers.0.self_attn.q_proj"} < set(members["ignore"])
    assert members["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert load(tmp_path / "export")(IDS).logits.isfinite().all()


def test_a_float16_model_runs_dequantized_and_says_so(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype="F16", num_hidden_layers=1)
    quantize(source, tmp_path / "package", lm_head="quantize")
    export = export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    assert export.notes[-1].endswith("quantization_config=CompressedTensorsConfig(dequantize=True)).")
    with pytest.warns(UserWarning, match="already has a `quantization_config`"):
        model = load(tmp_path / "export", quantization_config=DEQUANTIZED)
    assert model(IDS).logits.dtype == torch.float16
    values = dequantized(tmp_path / "package")["lm_head.weight"]
    assert np.array_equal(model.lm_head.weight.detach().float().numpy(), values)


def test_a_referenced_target_is_read_from_its_source(llama: Path, mxfp4: Path, tmp_path: Path) -> None:
    quantize(llama, tmp_path / "package", target="reference")
    for package in (mxfp4, tmp_path / "package"):
        export_compressed_tensors(package, tmp_path / f"export-{package.name}")
    one, other = ((tmp_path / f"export-{name}" / "model.safetensors").read_bytes() for name in ("mxfp4", "package"))
    assert one == other


# every kind of family


def load_bf16(folder: Path, **options: Any) -> Any:
    """In BF16: that is what transformers leaves experts in, whatever it is asked for."""
    return load(folder, dtype=torch.bfloat16, attn_implementation="eager", **options)


def with_values_of(source: Path, package: Path, packed: set[str], folder: Path) -> Path:
    """The source with the 4-bit values of these tensors, which BF16 holds exactly."""
    tensors = load_file(source / "model.safetensors")
    values = dequantized(package)
    for name in packed:
        exact = torch.from_numpy(values[name].copy())
        tensors[name] = exact.bfloat16()
        assert torch.equal(tensors[name].float(), exact), name
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    return folder


@pytest.mark.filterwarnings("ignore:.*already has a `quantization_config`")
def test_an_mtp_module_is_packed_beside_the_model_which_computes_the_same(tmp_path: Path) -> None:
    """transformers leaves the module's tensors out when it loads them; vLLM finds them under their own names."""
    source, package, exported = tmp_path / "source", tmp_path / "package", tmp_path / "export"
    sizes = SIZES | {"moe_intermediate_size": 64, "num_nextn_predict_layers": 1}
    model = checkpoints.make_model("glm4_moe", **sizes)
    module = MtpOracle(model).tensors("model.layers.4.", NEXTN)
    checkpoints.write_checkpoint(model, source, module)
    quantize(source, package)
    export_compressed_tensors(package, exported)
    names = load_file(exported / "model.safetensors").keys()
    assert {"model.layers.4.eh_proj.weight_packed", "model.layers.4.enorm.weight"} <= names
    left = json.loads((exported / "mxconv_export.json").read_text())["left_in_16_bits"]
    packed = dequantized(package).keys() - left.keys()
    expected = load_bf16(with_values_of(source, package, packed, tmp_path / "expected"))
    found = load_bf16(exported, quantization_config=DEQUANTIZED)
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, expected(IDS).logits)


@pytest.mark.filterwarnings("ignore:.*already has a `quantization_config`")
@pytest.mark.parametrize("family", PACKED)
def test_transformers_computes_with_the_values_of_the_package(family: str, tmp_path: Path) -> None:
    changes, num_packed = PACKED[family]
    source, package, exported = tmp_path / "source", tmp_path / "package", tmp_path / "export"
    checkpoints.write_checkpoint(checkpoints.make_model(family, **(SIZES | changes)), source)
    quantize(source, package, lm_head="quantize")
    export_compressed_tensors(package, exported)
    left = json.loads((exported / "mxconv_export.json").read_text())["left_in_16_bits"]
    packed = dequantized(package).keys() - left.keys()
    assert len(packed) == num_packed
    expected = load_bf16(with_values_of(source, package, packed, tmp_path / "expected"))
    found = load_bf16(exported, quantization_config=DEQUANTIZED)
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, expected(IDS).logits)
        assert not torch.equal(found(IDS).logits, load_bf16(source)(IDS).logits)
