"""Rotations against transformers; end to end they are part of the logits in test_decoder.py."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.engine.rope import RotaryEmbedding, rotate

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 10000.0},
    "plain, new style": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "linear": {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear, new style": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.5}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}},
    "llama3 without the original context": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "null scaling": {"rope_theta": 1e4, "rope_scaling": None},
    "scaling wins over parameters": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 8.0},
    },
}


@pytest.mark.parametrize("style", STYLES)
def test_rotations_agree_with_transformers(style: str) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 16384}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, **STYLES[style]))
    ours = RotaryEmbedding(RopeParameters.from_fields(Fields(STYLES[style], "config.json"), 16384), 128)
    np.testing.assert_allclose(ours.frequencies, theirs.inv_freq.numpy(), rtol=1e-6)

    positions = torch.arange(100, 140)[None]
    x = torch.randn(1, 2, 40, 128, generator=torch.Generator().manual_seed(0))
    expected, _ = apply_rotary_pos_emb(x, x, *theirs(x, positions))
    rotated = rotate(x[0].transpose(0, 1).numpy(), *ours.rotations(range(100, 140)))
    np.testing.assert_allclose(rotated, expected[0].transpose(0, 1).numpy(), atol=2e-4)


def test_a_rotation_depends_on_its_position_alone() -> None:
    rotary = RotaryEmbedding(RopeParameters(10000.0), 64)
    together = rotary.rotations(range(5, 65))
    for position in range(5, 65):
        alone = rotary.rotations([position])
        assert all((one[0] == every[position - 5]).all() for one, every in zip(alone, together, strict=True))
