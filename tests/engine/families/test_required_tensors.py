"""The tensors that a description requires are those of transformers' model, and every hole is named."""

from collections.abc import Callable

import pytest
from family_checkpoints import FAMILIES

from mxconv.arch.families.registry import describe_file
from mxconv.arch.required_tensors import required_tensors
from mxconv.arch.whole_model import HeldTensor, check_whole, faults, fitted, held_tensors
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import ModelError

FP32_BUFFERS = ("rotary_emb.inv_freq",)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_description_requires_what_transformers_saves_and_each_tensor_left_out_is_named(
    name: str, family_of: Callable
) -> None:
    folder = family_of(name).folder
    with open_checkpoint(folder) as checkpoint:
        held = held_tensors(checkpoint)
    config = fitted(describe_file(folder / "config.json"), held, lambda *_: True)
    own = {own: name for name in held if (own := config.own_name(name)) is not None}
    required = required_tensors(config, own)
    assert required.keys() == own.keys() - {own_name for own_name in own if own_name.endswith(FP32_BUFFERS)}
    check_whole(config, held, "tiny")
    for left_out in required:
        rest = {name: tensor for name, tensor in held.items() if name != own[left_out]}
        found = list(faults(config, rest))
        # a stack that is gone makes its layer one of experts apart, each of which is missing
        assert found and (found[0][0] == own[left_out] or "experts" in left_out), (left_out, found[:1])
        assert f"tensor {found[0][0]} is missing; its shape" in found[0][1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            HeldTensor((47, 48), "BF16"),
            r"has shape \[47, 48\]; \[48, 48\] is required of the llama model that config.json",
        ),
        (HeldTensor((48, 48), "F32"), r"has dtype F32; BF16 or F16 is required of it. Give --dtype bf16"),
        (HeldTensor((48, 48), "I8"), r"has dtype I8; BF16 or F16 is required of it. Export the model in 16 bits"),
    ],
)
def test_another_shape_or_dtype_is_named(change: HeldTensor, words: str, family_of: Callable) -> None:
    folder, tensor = family_of("llama").folder, "model.layers.1.self_attn.q_proj.weight"
    with open_checkpoint(folder) as checkpoint:
        held = held_tensors(checkpoint)
    config = fitted(describe_file(folder / "config.json"), held, lambda *_: True)
    with pytest.raises(ModelError, match=rf"tiny: tensor {tensor} {words}"):
        check_whole(config, held | {tensor: change}, "tiny")
