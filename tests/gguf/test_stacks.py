"""Experts that a checkpoint stacks in one tensor, as GGUF has them: in 16 bits, in 4, and as MXFP4 of the source."""

import json
from pathlib import Path

import numpy as np
import pytest
from exported_gguf import all_values
from gguf_models import write_byte_level_tokenizer
from packages import forge, quantize

from mxconv.errors import ModelError
from mxconv.interop.gguf_export import export_gguf

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
safetensors_torch = pytest.importorskip("safetensors.torch")
PREFIX = "model.layers.0.mlp.experts."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gpt_oss, whose stacks have gates and ups in turns and both axes exchanged."""
    folder = tmp_path_factory.mktemp("stacks") / "source"
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 320}
    rope = checkpoints.YARN | {"truncate": False}
    model = checkpoints.make_model("gpt_oss", **sizes, swiglu_limit=7.0, rope_parameters=rope)
    checkpoints.write_checkpoint(model, folder)
    write_byte_level_tokenizer(folder, "llama-bpe")
    return folder


def values_of(path: Path) -> dict[str, np.ndarray]:
    """Of the stacks: (experts, out_features, in_features)."""
    found = all_values(path).items()
    return {name.removeprefix("blk.0.ffn_"): values for name, values in found if "_exps." in name}


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_gates_and_ups_are_parted(source: Path, tmp_path: Path, codec: str) -> None:
    quantize(source, tmp_path / "p", codec=codec)
    export = export_gguf(tmp_path / "p", tmp_path / "m.gguf", level="target")
    note = "llama.cpp's gpt-oss rounds where YaRN begins and ends: its logits differ, the more the later."
    assert note in export.notes
    found = values_of(tmp_path / "m.gguf")
    stored = safetensors_torch.load_file(source / "model.safetensors")
    both, down = (stored[PREFIX + name].float().numpy() for name in ("gate_up_proj", "down_proj"))
    biases = stored[f"{PREFIX}gate_up_proj_bias"].float().numpy()
    np.testing.assert_array_equal(found["gate_exps.weight"], both.transpose(0, 2, 1)[:, ::2])
    np.testing.assert_array_equal(found["up_exps.weight"], both.transpose(0, 2, 1)[:, 1::2])
    np.testing.assert_array_equal(found["down_exps.weight"], down.transpose(0, 2, 1))
    np.testing.assert_array_equal(found["gate_exps.bias"], biases[:, ::2])
    np.testing.assert_array_equal(found["up_exps.bias"], biases[:, 1::2])


def test_mxfp4_of_the_source_is_in_both_files(source: Path, tmp_path: Path) -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = safetensors_torch.load_file(source / "model.safetensors")
    generator, expected = torch.Generator().manual_seed(4), {}
    for name, rows, num_blocks in (("gate_up_proj", 192, 2), ("down_proj", 64, 3)):
        num_experts = len(tensors.pop(PREFIX + name))
        blocks = torch.randint(0, 256, (num_experts, rows, num_blocks, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(110, 125, (num_experts, rows, num_blocks), dtype=torch.uint8, generator=generator)
        tensors |= {f"{PREFIX}{name}_blocks": blocks, f"{PREFIX}{name}_scales": scales}
        expected[name] = convert_moe_packed_tensors(blocks, scales).float().numpy().transpose(0, 2, 1)
    folder = tmp_path / "source"
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    safetensors_torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    quantize(folder, tmp_path / "p")
    export = export_gguf(tmp_path / "p", tmp_path / "out")
    assert not any("left out" in note for note in export.notes)
    for level in ("BF16", "MXFP4"):
        found = values_of(tmp_path / "out" / f"out-{level}.gguf")
        np.testing.assert_array_equal(found["gate_exps.weight"], expected["gate_up_proj"][:, ::2])
        np.testing.assert_array_equal(found["up_exps.weight"], expected["gate_up_proj"][:, 1::2])
        np.testing.assert_array_equal(found["down_exps.weight"], expected["down_proj"])


def test_a_stack_that_is_smaller_than_config_json_says_is_named(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    path = tmp_path / "p" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 128}))
    forge(tmp_path / "p")
    with pytest.raises(ModelError, match=r"gate_up_proj has shape \[5, 64, 192\]; \[5, 256, 64\] is required of the"):
        export_gguf(tmp_path / "p", tmp_path / "m.gguf")
