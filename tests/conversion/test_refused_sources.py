"""Checkpoints that are no 16-bit model: another quantizer's, adapters, parts of models, packages."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from checkpoints import llama_tensors, write_safetensors, write_tiny_llama
from packages import quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import plan_tensors
from mxconv.errors import CheckpointError

LAYER = "model.layers.0.mlp.up_proj"
E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16


def packed(dtype: Any = np.uint8, *shape: int) -> np.ndarray:
    return np.ones(shape or (16, 16), dtype)


def scales(dtype: Any = BF16, *shape: int) -> np.ndarray:
    return np.ones(shape or (16, 1), dtype)


GPTQ = {".g_idx": np.zeros(32, np.int32), ".qweight": packed(np.int32, 4, 16), ".scales": scales(np.float16, 1, 16)}
MLX = {".weight": packed(np.uint32, 16, 4), ".scales": scales(), ".biases": scales()}
NVFP4 = {".weight": packed(), ".weight_scale": scales(E4M3, 16, 2), ".weight_scale_2": np.ones((), np.float32)}
ROWS = {".weight": packed(E4M3), ".weight_scale": scales()}
HQQ = {".W_q": packed(), ".scale": scales(), ".zero": scales()}
EIGHT, ONE = {".weight": packed(np.int8)}, np.ones((), np.float32)
INT8 = EIGHT | {".weight_scale": scales()}
WIDE = {".weight": packed(E4M3, 256, 256)}

# tensors of a module, quant_method, the tensor that is named, who is named besides the method
# fmt: off
PACKED: dict[str, tuple[dict[str, np.ndarray], str | None, str, str | None]] = {
    "GPTQ": (GPTQ, "gptq", ".qweight is I32 [4, 16]", "GPTQ or AWQ"),
    "auto-round": (GPTQ, "auto-round", ".qweight is I32 [4, 16]", "GPTQ or AWQ"),
    "zeros alone": ({".qzeros": packed(np.int32, 1, 2)}, None, ".qzeros is I32 [1, 2]", "GPTQ or AWQ"),
    "bitsandbytes 4": (
        {".weight": packed(np.uint8, 256, 1), ".weight.absmax": scales(np.float32, 8)},
        None, ".weight is U8 [256, 1]", "bitsandbytes"),
    "bitsandbytes 8": (EIGHT | {".SCB": scales(np.float32, 16)}, None, ".weight is I8 [16, 16]", "bitsandbytes"),
    "compressed-tensors 4": (
        {".weight_packed": packed(np.int32, 16, 4), ".weight_scale": scales()},
        None, ".weight_packed is I32 [16, 4]", "compressed-tensors"),
    "compressed-tensors int8": (INT8, "compressed-tensors", ".weight is I8 [16, 16]", None),
    "int8 without config": (INT8, None, ".weight is I8 [16, 16]", None),
    "HQQ": (HQQ, "hqq", ".W_q is U8 [16, 16]", "HQQ"),
    "SINQ": (HQQ, "sinq", ".W_q is U8 [16, 16]", "HQQ"),
    "BitNet": (
        {".weight": packed(np.uint8, 4, 32), ".weight_scale": scales(BF16, 1)},
        "bitnet", ".weight is U8 [4, 32]", None),
    "quanto": (
        {".weight._data": packed(np.int8), ".weight._scale": scales(), ".input_scale": scales(np.float32, 1)},
        None, ".weight._data is I8 [16, 16]", "quanto"),
    "EETQ": (EIGHT | {".weight_scales": scales(np.float16, 16)}, None, ".weight is I8 [16, 16]", "EETQ"),
    "torchao": (
        {"._weight_qdata": packed(np.int8), "._weight_scale": scales()},
        None, "._weight_qdata is I8 [16, 16]", "torchao"),
    "AQLM": (
        {".codes": packed(np.int8, 16, 2, 1), ".codebooks": scales(np.float16, 1, 256, 1, 8), ".scales": scales()},
        None, ".codes is I8 [16, 2, 1]", "AQLM"),
    "VPTQ": (
        {".indices": packed(np.int32, 1, 16, 2), ".centroids.weight": scales(BF16, 1, 64), ".weight_scale": scales()},
        None, ".indices is I32 [1, 16, 2]", "VPTQ"),
    "SpQR": ({".dense_weights": packed(np.int64, 64)}, None, ".dense_weights is I64 [64]", "SpQR"),
    "QuIP#": (
        {".Qidxs": packed(np.int64, 16, 4), ".SU": scales(np.float16, 32)},
        None, ".Qidxs is I64 [16, 4]", "QuIP#"),
    "HIGGS": (
        {".weight": packed(np.int16), ".scales": scales(), ".tables": scales(), ".tables2": scales()},
        "higgs", ".weight is I16 [16, 16]", "HIGGS"),
    "FP8 per tensor": (
        {".weight": packed(E4M3), ".weight_scale": ONE, ".input_scale": ONE},
        "fp8", ".weight is F8_E4M3 [16, 16]", None),
    "FP8 per tensor, inverse": (WIDE | {".weight_scale_inv": ONE}, "fp8", ".weight is F8_E4M3 [256, 256]", None),
    "FP8 per row, inverse": (
        WIDE | {".weight_scale_inv": scales(BF16, 256, 1)},
        None, ".weight is F8_E4M3 [256, 256]", None),
    "FP8 per row": (ROWS, "fbgemm_fp8", ".weight is F8_E4M3 [16, 16]", None),
    "FP8 of five bits": (
        {".weight": packed(ml_dtypes.float8_e5m2), ".weight_scale_inv": scales(np.float32, 1, 1)},
        None, ".weight is F8_E5M2 [16, 16]", None),
    "FP8 experts": (
        {".gate_up_proj": packed(E4M3, 2, 16, 16), ".gate_up_proj_scale": scales(np.float32, 2, 16)},
        None, ".gate_up_proj is F8_E4M3 [2, 16, 16]", None),
    "ModelOpt NVFP4": (NVFP4, "modelopt", ".weight is U8 [16, 16]", "ModelOpt"),
    "MXFP4 of integers alone": (
        {".weight": packed(), ".weight_scale": packed(np.uint8, 16, 1)},
        "quark", ".weight is U8 [16, 16]", None),
    "MXFP4 of other shapes": (
        {"_blocks": packed(np.uint8, 2, 3, 4, 16), "_scales": packed(np.uint8, 2, 3, 5)},
        None, "_blocks is U8 [2, 3, 4, 16]", None),
    "EXL2": (
        {".q_weight": packed(np.int32), ".q_invperm": packed(np.int16, 16), ".q_scale": packed(np.int32, 1, 2)},
        None, ".q_weight is I32 [16, 16]", "EXL2"),
    "a new one": ({".blob": packed(np.uint64), ".my_scales": scales()}, "new", ".blob is U64 [16, 16]", None),
}
# fmt: on


def refusal(source: Path, **options: Any) -> str:
    """The message of a conversion that must write nothing."""
    before = {path.name for path in source.parent.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        quantize(source, source.parent / "p", **options)
    assert {path.name for path in source.parent.iterdir()} == before
    return str(caught.value)


def write_packed(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    """Weights of one module beside a plain head."""
    others = {"lm_head.weight": np.ones((16, 32), np.float16)}
    write_safetensors(folder / "model.safetensors", {LAYER + name: array for name, array in tensors.items()} | others)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", PACKED)
def test_the_packed_tensor_and_the_quantizer_are_named(tmp_path: Path, name: str) -> None:
    tensors, method, named, known = PACKED[name]
    config = {"quantization_config": {"quant_method": method}} if method else {}
    folder = write_packed(tmp_path / "m", tensors, **config)
    quantizer = f"the quantizer {known or method}" if known or method else "an unknown quantizer"
    by_method = f" (quant_method {method})" if known and method else ""
    assert refusal(folder) == (
        f"{folder}/model.safetensors: tensor {LAYER}{named} of {quantizer}{by_method}; weights of 16 bits, "
        "FP8 with block scales or gpt-oss's MXFP4 are required. Convert the 16-bit model that it was made from."
    )


NO_METHOD: list[dict[str, Any]] = [
    {"quantization": {"bits": 4}, "quantization_config": {"bits": 4}},
    {"quantization_config": None},
    {"quantization_config": [1]},
    {"quantization_config": {"quant_method": 3}, "text_config": 7},
]


def test_the_quantizer_is_named_by_any_configuration_and_by_its_own_file(tmp_path: Path) -> None:
    nested = {"text_config": {"quantization_config": {"quant_method": "nested"}}}
    for number, config in enumerate([*NO_METHOD, nested]):
        found = refusal(write_packed(tmp_path / str(number) / "m", MLX, **config))
        assert (
            f".weight is U32 [16, 4] of the quantizer MLX{' (quant_method nested)' if config is nested else ''}; "
            in found
        )
    folder = write_packed(tmp_path / "m", ROWS)
    (folder / "hf_quant_config.json").write_text("{}")
    assert ".weight is F8_E4M3 [16, 16] of the quantizer ModelOpt; " in refusal(folder)


def test_one_packed_expert_among_plain_ones_is_found(tmp_path: Path) -> None:
    experts = {f"model.layers.1.mlp.experts.{i}.w1.weight": np.ones((16, 32), BF16) for i in range(8)}
    experts["model.layers.1.mlp.experts.5.w1.weight"] = packed(np.int8)
    experts["model.layers.1.mlp.experts.5.w1.weight_scale"] = scales()
    path = write_safetensors(tmp_path / "m" / "model.safetensors", experts)
    assert "experts.5.w1.weight is I8 [16, 16] of an unknown quantizer; " in refusal(path.parent)


# integers of 16-bit models, as transformers saves them, and scales of caches and activations
PLAIN = {
    "h.0.attn.bias": np.ones((1, 1, 8, 8), np.uint8),
    "h.0.attn.masked_bias": np.ones((), np.float32),
    "h.0.attn.causal_mask": np.ones((1, 1, 8, 8), np.uint8),
    "h.0.k_proj.k_scale": np.ones((), np.float32),
    "vision.position_ids": np.ones((1, 8), np.int64),
    "vision.layers.0.relative_position_index": np.ones((8, 8), np.int64),
    "vision.layers.0.relative_position_bias_table": np.ones((8, 4), BF16),
    "mlp.gate.tid2eid": np.ones((8, 2), np.int32),
    "mlp.gate.weight": np.ones((4, 32), BF16),
    "d2t": np.ones(16, np.int64),
    "t2d": np.ones(16, bool),
    "tables.lookup": np.ones((4, 4), np.int64),
    "rwkv.w_lora.lora.0.weight": np.ones((4, 32), BF16),
}


def test_integers_of_plain_models_are_kept_and_a_left_over_configuration_says_nothing(tmp_path: Path) -> None:
    tensors = llama_tensors() | PLAIN
    write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    left_over = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(left_over))
    with open_checkpoint(tmp_path / "m") as checkpoint:
        assert len(plan_tensors(checkpoint, QuantizeOptions())) == len(tensors)


LORA = {
    f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight": np.ones(shape, BF16)
    for side, shape in {"A": (8, 64), "B": (64, 8)}.items()
}
ADAPTERS = {  # a tensor's name of each kind
    "LoRA": "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    "LoRA without a prefix": "model.layers.0.self_attn.q_proj.lora_B.default.weight",
    "embeddings": "model.embed_tokens.lora_embedding_A.default",
    "DoRA": "layers.0.q_proj.lora_magnitude_vector.weight",
    "IA3": "model.layers.0.mlp.down_proj.ia3_l",
    "LoHa": "layers.0.q_proj.hada_w1_a",
    "LoKr": "layers.0.q_proj.lokr_w2",
    "OFT": "layers.0.q_proj.oft_R.weight",
    "mlx-lm": "model.layers.0.self_attn.q_proj.lora_a",
    "prompts": "prompt_embeddings",
    "diffusers": "unet.down_blocks.0.to_q.lora.down.weight",
    "diffusers of before": "down_blocks.0.processor.to_q_lora.up.weight",
    "kohya": "lora_unet_down_blocks_0_to_q.lora_up.weight",
    "another kind of peft's": "base_model.model.layers.0.fourierft_spectrum",
}
MERGE = (
    "Merge it first, with peft: model = AutoModelForCausalLM.from_pretrained({base}); model = "
    "PeftModel.from_pretrained(model, '{folder}').merge_and_unload(); model.save_pretrained('merged'). "
    "Then convert that folder."
)


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_file_with_an_adapter_is_refused(tmp_path: Path, kind: str) -> None:
    name = ADAPTERS[kind]
    weights = {} if kind == "LoRA" else llama_tensors()
    path = write_safetensors(tmp_path / "m" / "some.safetensors", weights | {name: np.ones((8, 64), BF16)})
    assert refusal(path) == (
        f"{path}: tensor {name} is of an adapter of another model; the weights of a whole model are required. "
        + MERGE.format(base="BASE", folder=path)
    )


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("adapter_model.safetensors", "base_model_name_or_path"),
        ("adapter_model.bin", "model"),
        ("adapters.safetensors", "model"),
    ],
)
def test_a_folder_with_an_adapter_names_its_base(tmp_path: Path, file: str, key: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", key: "org/base"}))
    if file.endswith(".bin"):
        torch.save({name: torch.ones(2, 2) for name in LORA}, folder / file)
    else:
        write_safetensors(folder / file, LORA)
    adapter = "an adapter of 'org/base'; the weights of a whole model are required. "
    assert refusal(folder) == f"{folder}: holds {adapter}" + MERGE.format(base="'org/base'", folder=folder)
    assert refusal(folder / file) == f"{folder / file}: tensor {next(iter(LORA))} is of {adapter}" + MERGE.format(
        base="'org/base'", folder=folder / file
    )


def test_prompts_cannot_be_merged_and_a_config_may_say_nothing(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a" / "adapter_model.safetensors", {"prompt_embeddings": np.ones((8, 64), BF16)})
    config = tmp_path / "a" / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "PROMPT_TUNING", "base_model_name_or_path": "org/base"}))
    end = "One of the type PROMPT_TUNING cannot be merged into weights: convert 'org/base' without it."
    assert refusal(tmp_path / "a").endswith(end)
    config.write_text("{}")
    assert "holds an adapter of another model; " in refusal(tmp_path / "a")
    config.unlink()
    assert "holds an adapter of another model; " in refusal(tmp_path / "a")


@pytest.mark.parametrize("name", ["model.safetensors", "my-model.safetensors"])
def test_an_adapter_beside_a_whole_model_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / name)
    write_safetensors(folder / "adapter_model.safetensors", LORA)
    (folder / "adapter_config.json").write_text("{}")
    manifest = quantize(folder, tmp_path / "p")
    assert {record.name for record in manifest.tensors} == set(llama_tensors())
    assert not list((tmp_path / "p").glob("adapter*"))


def test_adapters_that_belong_to_a_model_are_part_of_it(tmp_path: Path) -> None:
    folder = write_packed(tmp_path / "m", {".lora_A.vision.weight": np.ones((8, 32), BF16)}, vision_lora={"r": 8})
    assert f"{LAYER}.lora_A.vision.weight" in {record.name for record in quantize(folder, tmp_path / "p").tensors}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model-00001-of-00002.safetensors", "1 of 2"),
        ("model-00003-of-000163.safetensors", "3 of 163"),
        ("model.fp16-00002-of-00002.safetensors", "2 of 2"),
        ("pytorch_model-00001-of-00007.bin", "1 of 7"),
    ],
)
def test_a_part_of_a_model_is_refused(tmp_path: Path, name: str, part: str) -> None:
    path = tmp_path / "m" / name
    write_safetensors(path, llama_tensors())
    if path.suffix == ".bin":
        torch.save({"lm_head.weight": torch.ones((16, 32), dtype=torch.bfloat16)}, path)
    end = (
        f" part {part} of a model; all parts, and the index beside them, are required. Download the missing files, and "
        "give the folder that holds them."
    )
    assert refusal(path) == f"{path}: is{end}"
    assert refusal(path.parent) == f"{path.parent}: holds {name},{end}"


def test_one_part_of_one_is_a_model(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m" / "model-00001-of-00001.safetensors", llama_tensors())
    assert quantize(tmp_path / "m", tmp_path / "p").tensors
