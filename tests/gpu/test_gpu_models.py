"""Models whose linear layers are matrices of a package; torch multiplies on a CPU, so the models are tiny."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")
pytest.importorskip("transformers", reason="mxconv[hf] is not installed: transformers is missing")

import torch
from gpu_weights import DEVICE
from packages import quantize
from torch import nn
from torch_models import endless_model

from mxconv.errors import ModelError
from mxconv.gpu import device
from mxconv.gpu.gpu_linear import GpuLinear
from mxconv.interop.transformers import drafts, load_package, quantize_model

PROMPT = torch.tensor([[5, 9, 3, 7]], device=DEVICE)


@pytest.fixture
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """As `endless_model`, in a folder of its own."""
    return lambda **changes: endless_model(tmp_path_factory.mktemp("random"), **changes)


def logits(of: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = of(ids).logits.float()
    return result


def generated(model: Any, **arguments: Any) -> list[int]:
    tokens: list[int] = model.generate(PROMPT, max_new_tokens=4, do_sample=False, **arguments)[0].tolist()
    return tokens


@pytest.mark.parametrize("codec", ["bsfp", "mxfp4"])
def test_every_linear_layer_is_replaced(tiny: Callable[..., tuple[Any, Path]], codec: Any) -> None:
    model, _ = tiny(model_type="qwen2")  # its projections have biases
    exact = {name: each.weight.detach().clone() for name, each in model.named_modules() if type(each) is nn.Linear}
    expected = logits(model.to(DEVICE), PROMPT)
    names = quantize_model(model.cpu(), codec, device=DEVICE)
    assert set(names) == set(exact)
    layers = {name: model.get_submodule(name) for name in names}
    assert all(isinstance(layer, GpuLinear) for layer in layers.values())
    if codec == "bsfp":
        assert all(torch.equal(layers[name].weight().cpu(), exact[name].cpu()) for name in names)
    error = (logits(model, PROMPT) - expected).norm() / expected.norm()
    assert error < (0.02 if codec == "bsfp" else 0.5)


def test_names_can_be_skipped_and_the_head_kept(tiny: Callable[..., tuple[Any, Path]]) -> None:
    model, _ = tiny(model_type="qwen2")
    names = quantize_model(model, lm_head="keep", skip=["*.q_proj.weight", "*.down_proj.weight"], device=DEVICE)
    assert {name.rpartition(".")[2] for name in names} == {"k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"}
    assert type(model.lm_head) is type(model.model.layers[0].self_attn.q_proj) is nn.Linear
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.full((16, 32), 1 / 3), "1: float32 weights that BF16 does not hold exactly; 16-bit weights"),
        (torch.zeros(16, 32).double(), r"1: weights of torch\.float64; bfloat16 or float16 is required"),
        (torch.zeros(16, 32).to(torch.float8_e5m2), r"1: weights of torch\.float8_e5m2; bfloat16 or float16"),
        (torch.zeros(16, 32, device="meta"), "1: weights on meta; the CPU is required"),
        (torch.zeros(0, 32).half(), r"1: weights of shape \(0, 32\); at least one is required"),
        (torch.full((16, 32), torch.nan).half(), r"1: weight \[0, 0\] is nan; .* Leave it with skip=\['1\.weight'\]"),
    ],
)
def test_either_everything_is_replaced_or_nothing(weight: torch.Tensor, message: str) -> None:
    net = nn.Sequential(nn.Linear(32, 16, dtype=torch.bfloat16), nn.Linear(32, 16, dtype=torch.bfloat16))
    net[1].weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(ModelError, match=message):
        quantize_model(net, device=DEVICE)
    assert [type(module) for module in net] == [nn.Linear, nn.Linear]
    with pytest.raises(ModelError, match=r"codec 'int4', lm_head 'quantize'; mxfp4 or bsfp, quantize or keep\."):
        quantize_model(net, "int4", device=DEVICE)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"ReLU: no torch\.nn\.Linear to replace; at least one is required"):
        quantize_model(nn.ReLU(), "bsfp", device=DEVICE)


def test_one_model_is_its_own_draft_on_one_cache(tiny: Callable[..., tuple[Any, Path]], tmp_path: Path) -> None:
    model, package = tiny()
    quantize(package.parent / "source", tmp_path / "bsfp", codec="bsfp")
    quantize_model(model, "bsfp", device=DEVICE)
    with drafts(tmp_path / "bsfp", num_draft_tokens=[3], confidence=[0.0], check=True, device=DEVICE) as own:
        found = generated(model, custom_generate=own)
        run = own.last
    assert run is not None
    assert run.difference is None
    assert found == generated(model)
    (statistics,) = run.levels
    assert statistics.num_forwards == statistics.num_asked > 0
    assert run.num_rounds < 4 or statistics.num_accepted == 0
    assert all(layer.level == "target" for layer in model.modules() if isinstance(layer, GpuLinear))


@pytest.mark.parametrize("window", [None, 5])
def test_a_draft_of_the_same_weights_is_always_right(
    tiny: Callable[..., tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """MXFP4 layers that draft for themselves: each proposal stands, if the cache is as it was before it was made."""
    model, package = tiny(model_type="mistral", sliding_window=window)
    quantize_model(model, "mxfp4", device=DEVICE)
    expected = generated(model)
    for layer in model.modules():
        if isinstance(layer, GpuLinear):
            layer.has_target, layer.level = True, "target"
    with drafts(package, num_draft_tokens=[4], confidence=[0.0], device=DEVICE) as own:
        assert generated(model, custom_generate=own) == expected
        assert own.last is not None
        assert own.last.levels[0].acceptance_rate == 1


@pytest.mark.parametrize("codec", ["bsfp", "mxfp4"])
def test_a_package_takes_the_place_of_layers_that_hold_nothing(
    tiny: Callable[..., tuple[Any, Path]], tmp_path: Path, codec: Any
) -> None:
    model, package = tiny(tie_word_embeddings=True)
    quantize(package.parent / "source", tmp_path / "package", codec=codec, lm_head="quantize")
    encoded = copy.deepcopy(model)
    names = quantize_model(encoded, codec, device=DEVICE)
    for module in model.modules():
        if type(module) is nn.Linear and module is not model.lm_head:
            module.to("meta")
    assert load_package(model, tmp_path / "package", DEVICE) == names
    assert torch.equal(logits(model, PROMPT), logits(encoded, PROMPT))
    with drafts(tmp_path / "package", num_draft_tokens=[2], confidence=[0.0], device=DEVICE) as own:
        assert codec == "mxfp4" or generated(model, custom_generate=own) == generated(encoded)


def test_a_package_of_another_model_is_refused(tiny: Callable[..., tuple[Any, Path]]) -> None:
    model, _ = tiny()
    _, package = tiny(intermediate_size=64)
    with pytest.raises(ModelError, match=r"0\.mlp\.gate_proj\.weight is 64 x 32; LlamaForCausalLM requires 48 x 32\."):
        load_package(model, package, DEVICE)
    with pytest.raises(ModelError, match="none of its matrices is a linear layer of Sequential; one of the same name"):
        load_package(nn.Sequential(nn.Linear(4, 4)), package, DEVICE)


def test_a_draft_that_is_not_sure_proposes_nothing(tiny: Callable[..., tuple[Any, Path]]) -> None:
    model, package = tiny()
    model.to(DEVICE)
    with drafts(package, confidence=[1.0], device=DEVICE) as own:
        generated(model, custom_generate=own)
        assert own.last is not None
        assert own.last.levels[0].num_proposed == 0


def test_what_cannot_be_is_refused(tiny: Callable[..., tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, package = tiny()
    message = rf"drafts small on {DEVICE}(:0)?; the 4-bit self-draft \(mxfp4\) is the one that runs"
    with pytest.raises(ModelError, match=message):
        drafts(package, ["small"], device=DEVICE)
    with pytest.raises(ModelError, match=r"num_draft_tokens='auto', .*; one number of each is required"):
        drafts(package, num_draft_tokens="auto", device=DEVICE)
    monkeypatch.setattr(device, "free_bytes", lambda _: 1000)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM: 0\.00 GB .* With codec='mxfp4' they are 0\.00 GB"):
        quantize_model(model, "bsfp", device=DEVICE)
    assert type(model.lm_head) is nn.Linear
    monkeypatch.undo()
    quantize_model(model, "mxfp4", device=DEVICE)
    layer = model.lm_head
    with pytest.raises(ModelError, match="level 'target'; draft, the only one of MXFP4, is required"):
        layer.level = "target"
    with pytest.raises(
        ModelError, match=r"product: torch\.float32 of shape \(2, 5\); floats of shape \(tokens, 32\) are required"
    ):
        layer(torch.zeros(2, 5, device=DEVICE))
    with pytest.raises(ModelError, match="requires a gradient; this layer is for inference"):
        layer(torch.zeros(1, 32, device=DEVICE, requires_grad=True))
