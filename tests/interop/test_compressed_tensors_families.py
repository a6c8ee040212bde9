"""The export of every kind of family: transformers loads it and computes with our weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantized import dequantized
from mtp_models import NEXTN, MtpOracle
from packages import quantize
from packed_families import PACKED, SIZES
from safetensors.torch import load_file, save_file

from mxconv.errors import MxconvError
from mxconv.interop.compressed_tensors import export_compressed_tensors

checkpoints = pytest.importorskip("family_checkpoints", reason="transformers makes these checkpoints")
IDS = torch.arange(3, 40)[None]


def load(folder: Path, **options: Any) -> Any:
    """In BF16: that is what transformers leaves experts in, whatever it is asked for."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager", **options)
    return model.eval()


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
    from transformers import CompressedTensorsConfig

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
    expected = load(with_values_of(source, package, packed, tmp_path / "expected"))
    found = load(exported, quantization_config=CompressedTensorsConfig(dequantize=True))
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, expected(IDS).logits)


def test_experts_that_cannot_be_packed_are_refused(tmp_path: Path) -> None:
    checkpoints.write_checkpoint(checkpoints.make_model("qwen3_moe", **SIZES), tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "package")
    message = r"tensor model\.layers\.0\.mlp\.experts\.0\.down_proj\.weight \[64, 48\] of an expert cannot be packed as"
    with pytest.raises(MxconvError, match=message):
        export_compressed_tensors(tmp_path / "package", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.filterwarnings("ignore:.*already has a `quantization_config`")
@pytest.mark.parametrize("family", PACKED)
def test_transformers_computes_with_the_values_of_the_package(family: str, tmp_path: Path) -> None:
    from transformers import CompressedTensorsConfig

    changes, num_packed = PACKED[family]
    source, package, exported = tmp_path / "source", tmp_path / "package", tmp_path / "export"
    checkpoints.write_checkpoint(checkpoints.make_model(family, **(SIZES | changes)), source)
    quantize(source, package, lm_head="quantize")
    export_compressed_tensors(package, exported)
    left = json.loads((exported / "mxconv_export.json").read_text())["left_in_16_bits"]
    packed = dequantized(package).keys() - left.keys()
    assert len(packed) == num_packed
    expected = load(with_values_of(source, package, packed, tmp_path / "expected"))
    found = load(exported, quantization_config=CompressedTensorsConfig(dequantize=True))
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, expected(IDS).logits)
        assert not torch.equal(found(IDS).logits, load(source)(IDS).logits)
