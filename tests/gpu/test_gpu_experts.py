"""Mixtures of experts whose experts are stacks of a package; torch multiplies on a CPU, so the models are tiny."""

import copy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")
pytest.importorskip("transformers", reason="mxconv[hf] is not installed: transformers is missing")

import safetensors.torch
import torch
from family_checkpoints import make_model, write_checkpoint
from gpu_weights import DEVICE
from packages import quantize
from torch import nn
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxconv.errors import ModelError
from mxconv.gpu.gpu_experts import STACKS, GpuExperts, expert_modules, expert_weights
from mxconv.gpu.gpu_package import GpuPackage
from mxconv.interop.transformers import drafts, load_package, quantize_model

PROMPT = torch.tensor([[5, 9, 3, 7, 11]], device=DEVICE)
SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
# whose checkpoints stack experts (gpt_oss: transposed, with biases, gates and ups in turns), and whose do not
FAMILIES = {
    "qwen3_moe": {"mlp_only_layers": []},
    "gpt_oss": {"layer_types": ["full_attention"], "intermediate_size": 48},
    "granitemoe": {},
    "deepseek_v3": {"first_k_dense_replace": 0, "num_key_value_heads": 2},
    "gemma4, with experts": {"layer_types": ["full_attention"], "num_kv_shared_layers": 0},
}

TWO_FAMILIES = pytest.mark.parametrize("source", ["gpt_oss", "qwen3_moe"], indirect=True)


def tiny(family: str) -> Any:
    """Float32, of BF16's values."""
    model = make_model(family, **SMALL | FAMILIES[family])
    model.set_attn_implementation("sdpa" if family != "gpt_oss" else "eager")
    model.generation_config.max_length = None
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model, and its checkpoint."""
    folder = tmp_path_factory.mktemp("experts") / "source"
    model = tiny(request.param)
    write_checkpoint(model, folder)
    return model, folder


@pytest.fixture(scope="module")
def package(source: tuple[Any, Path]) -> Path:
    folder = source[1]
    quantize(folder, folder.parent / "bsfp", codec="bsfp")
    return folder.parent / "bsfp"


def logits(model: Any, ids: torch.Tensor = PROMPT) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits.float()
    return found


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def experts_of(model: Any) -> list[GpuExperts]:
    return [module for module in model.modules() if isinstance(module, GpuExperts)]


def matrices(module: Any) -> dict[str, list[torch.Tensor]]:
    """The experts' weights as they were."""
    return {stack: [each.clone() for each in expert_weights(module, stack)] for stack in STACKS}


def test_a_package_holds_the_experts_exactly_and_their_draft(source: tuple[Any, Path], package: Path) -> None:
    original, _ = source
    names = [name for name, _ in expert_modules(original)]
    exact = {name: matrices(original.get_submodule(name)) for name in names}
    assert names
    model = copy.deepcopy(original)
    replaced = load_package(model, package, DEVICE)
    assert set(names) < set(replaced)
    assert not list(expert_modules(model))  # nothing in 16 bits is left of them
    for name in names:
        held = model.get_submodule(name)
        assert isinstance(held, GpuExperts)
        first, second = exact[name].values()
        for number, weight in enumerate(first):
            apart = [stack.expert(number).rebuild() for stack in held.matrices.first]
            assert torch.equal(torch.cat(apart).float().cpu(), weight)
        for number, weight in enumerate(second):
            assert torch.equal(held.matrices.second.expert(number).rebuild().float().cpu(), weight)
    expected = logits(original.to(DEVICE))
    assert error(logits(model), expected) < 0.02  # activations are rounded to BF16
    for module in model.modules():
        if hasattr(type(module), "level"):
            module.level = "draft"
    assert 0.01 < error(logits(model), expected) < 0.9  # 1.4 of weights that have nothing to do with it


@TWO_FAMILIES
def test_encoding_a_model_gives_the_packages_bits(source: tuple[Any, Path], package: Path) -> None:
    loaded, encoded = copy.deepcopy(source[0]).cpu(), copy.deepcopy(source[0]).cpu()
    assert set(load_package(loaded, package, DEVICE)) == set(quantize_model(encoded, "bsfp", device=DEVICE))
    assert torch.equal(logits(loaded), logits(encoded))


@TWO_FAMILIES
def test_a_mixture_is_its_own_draft_and_drafts_for_its_16_bits(source: tuple[Any, Path], package: Path) -> None:
    model = copy.deepcopy(source[0]).to(DEVICE)
    before = [type(module) for module in model.modules()]
    sixteen = copy.deepcopy(model)
    load_package(model, package, DEVICE)
    with drafts(package, num_draft_tokens=[2], confidence=[0.0], device=DEVICE) as own:
        for each in (model, sixteen):
            arguments = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(PROMPT)}
            expected = each.generate(PROMPT, **arguments)
            found = each.generate(PROMPT, custom_generate=own, **arguments)
            assert torch.equal(found, expected)
            assert own.last is not None
            assert own.last.levels[0].num_proposed > 0
    assert all(each.level == "target" for each in experts_of(model))
    assert [type(module) for module in sixteen.modules()] == before


@TWO_FAMILIES
def test_mxfp4_is_one_level(source: tuple[Any, Path]) -> None:
    model = copy.deepcopy(source[0]).cpu()
    expected = logits(copy.deepcopy(model).to(DEVICE))
    quantize_model(model, "mxfp4", device=DEVICE)
    assert 0.01 < error(logits(model), expected) < 0.9  # 1.4 of weights that have nothing to do with it
    (held,) = experts_of(model)
    assert not held.has_target
    with pytest.raises(ModelError, match="GpuExperts: level 'target'; draft, the only one of MXFP4, is required"):
        held.level = "target"


def test_gpt_osss_own_mxfp4_is_target_and_draft(tmp_path: Path) -> None:
    model = make_model("gpt_oss", **SMALL | FAMILIES["gpt_oss"] | {"intermediate_size": 64})
    write_checkpoint(model, tmp_path / "source")
    tensors = safetensors.torch.load_file(tmp_path / "source" / "model.safetensors")
    generator = torch.Generator().manual_seed(9)
    values = {}
    for stack, (rows, blocks) in {"gate_up_proj": (128, 1), "down_proj": (32, 2)}.items():
        stem = f"model.layers.0.mlp.experts.{stack}"
        codes = torch.randint(0, 256, (5, rows, blocks, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 125, (5, rows, blocks), dtype=torch.uint8, generator=generator)
        del tensors[stem]
        tensors |= {f"{stem}_blocks": codes, f"{stem}_scales": scales}
        values[stack] = convert_moe_packed_tensors(codes, scales).float()  # (experts, in, out)
        getattr(model.model.layers[0].mlp.experts, stack).data.copy_(values[stack])
    safetensors.torch.save_file(tensors, tmp_path / "source" / "model.safetensors", {"format": "pt"})
    quantize(tmp_path / "source", tmp_path / "bsfp", codec="bsfp")
    expected = logits(copy.deepcopy(model).to(DEVICE))
    load_package(model, tmp_path / "bsfp", DEVICE)
    (held,) = experts_of(model)
    for stack, found in zip(STACKS, (held.matrices.first[0], held.matrices.second), strict=True):
        for number in range(5):
            assert torch.equal(found.expert(number).rebuild().cpu(), values[stack][number].T)
    assert error(logits(model), expected) < 0.02


def test_experts_of_another_shape_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tiny("qwen3_moe"), tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "bsfp", codec="bsfp")
    other = make_model("qwen3_moe", **SMALL | {"mlp_only_layers": [], "moe_intermediate_size": 40})
    message = (
        r"experts are \(6, 96, 32\) and \(6, 32, 48\); Qwen3MoeForCausalLM requires \(6, 80, 32\) and \(6, 32, 40\)"
    )
    with pytest.raises(ModelError, match=message):
        load_package(other, tmp_path / "bsfp", DEVICE)


def test_an_expert_that_cannot_be_encoded_is_named_and_nothing_is_touched() -> None:
    model = tiny("qwen3_moe")
    model.model.layers[0].mlp.experts.down_proj.data[4, 2, 1] = float("inf")
    message = (
        r"mlp\.experts\.down_proj\[4\]: weight \[2, 1\] is inf; .*skip=\['model\.layers\.0\.mlp\.experts\.down_proj'\]"
    )
    with pytest.raises(ModelError, match=message):
        quantize_model(model, "mxfp4", device=DEVICE)
    assert list(expert_modules(model))
    assert all(type(module) is nn.Linear for name, module in model.named_modules() if name.endswith("_proj"))


def test_experts_of_which_some_were_kept_are_no_stack(tmp_path: Path) -> None:
    write_checkpoint(tiny("qwen3_moe"), tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "bsfp", codec="bsfp", skip=("*.experts.2.up_proj.weight",))
    loaded = GpuPackage(tmp_path / "bsfp", DEVICE)
    assert "model.layers.0.mlp.experts.*.gate_proj.weight" in loaded.stacks
    assert "model.layers.0.mlp.experts.*.up_proj.weight" not in loaded.stacks
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in loaded.weights
