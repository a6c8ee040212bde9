"""Whole models with their linear layers replaced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from mxconv.errors import ModelError
from mxconv.interop.transformers import BSFPLinear, MXFP4Linear, drafts, quantize_model

MODEL = Path(__file__).parents[3] / "examples" / "models" / "pylib-1.5m"
PER_LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def model(dtype: torch.dtype = torch.bfloat16) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval()
    loaded.generation_config.max_length = None
    return loaded


def logits(of: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return of(ids).logits.float()


def test_bsfp_is_the_same_model(prompts: list[torch.Tensor], pylib: Any) -> None:
    quantized = model(torch.float32)
    names = quantize_model(quantized, "bsfp")
    assert len(names) == 6 * len(PER_LAYER) + 1 and names[-1] == "lm_head"
    layers = [module for module in quantized.modules() if isinstance(module, BSFPLinear)]
    assert len(layers) == len(names)
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    for name in names:
        assert torch.equal(quantized.get_submodule(name).weight().float(), pylib.get_submodule(name).weight)
    ids = prompts[0]
    found, expected = logits(quantized, ids), logits(pylib, ids)
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()  # activations are rounded to BF16
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_mxfp4_is_near_the_model_and_generates(prompts: list[torch.Tensor], pylib: Any, three_levels: Path) -> None:
    quantized = model()
    quantize_model(quantized)
    assert isinstance(quantized.lm_head, MXFP4Linear)
    assert isinstance(quantized.model.embed_tokens, nn.Embedding)
    ids = torch.cat(prompts[:8], dim=-1)
    agreement = (logits(quantized, ids).argmax(-1) == logits(pylib, ids).argmax(-1)).float().mean()
    assert 0.6 < agreement < 1
    plain = quantized.generate(prompts[0], max_new_tokens=8)
    assert plain.shape[1] == prompts[0].shape[1] + 8
    with drafts(three_levels) as custom_generate:  # its own layers under somebody else's drafts
        quantized.generate(prompts[0], max_new_tokens=8, custom_generate=custom_generate)


def test_names_can_be_skipped_and_the_head_kept(random_model: Callable[..., tuple[Any, Path]]) -> None:
    torch_model, _ = random_model(model_type="qwen2")
    names = quantize_model(torch_model, lm_head="keep", skip=["*.0.*", "*.down_proj.weight"])
    assert len(names) == 2 * (len(PER_LAYER) - 1)
    assert type(torch_model.lm_head) is nn.Linear
    assert type(torch_model.model.layers[0].self_attn.q_proj) is nn.Linear
    assert torch_model.model.layers[1].self_attn.q_proj.bias is not None  # qwen2 has them
    assert logits(torch_model, torch.arange(9)[None]).isfinite().all()
    assert not any(parameter.requires_grad for parameter in torch_model.parameters())


def test_a_state_dict_restores_a_quantized_model(random_model: Callable[..., tuple[Any, Path]]) -> None:
    first, _ = random_model(model_type="llama")
    quantize_model(first, "bsfp")
    state = first.state_dict()
    assert "model.layers.0.mlp.up_proj.codes" in state and "model.layers.0.mlp.up_proj.weight" not in state
    second, _ = random_model(model_type="llama")
    for parameter in second.parameters():
        nn.init.constant_(parameter, 0.5)
    quantize_model(second, "bsfp")
    second.load_state_dict(state)
    ids = torch.arange(9)[None]
    assert torch.equal(logits(first, ids), logits(second, ids))


def test_either_everything_is_replaced_or_nothing() -> None:
    net = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16), nn.Linear(64, 64, dtype=torch.bfloat16))
    net[1].weight.data[2, 3] = float("nan")
    message = r"1: weight \[2, 3\] is nan; finite weights are required\. Leave it with skip=\['1\.weight'\]"
    with pytest.raises(ModelError, match=message):
        quantize_model(net)
    assert [type(module) for module in net] == [nn.Linear, nn.Linear]
    assert quantize_model(net, "bsfp") == ["0", "1"]
    with pytest.raises(ModelError, match=r"Sequential: no torch\.nn\.Linear to replace; at least one is required"):
        quantize_model(net)


def test_what_is_no_codec_is_refused() -> None:
    with pytest.raises(ModelError, match=r"codec 'int4', lm_head 'quantize'; mxfp4 or bsfp, quantize or keep\."):
        quantize_model(nn.Linear(4, 4), "int4")  # type: ignore[arg-type]
