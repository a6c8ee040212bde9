"""Drafts whose passes, and their target's, are replays; without a GPU, simulated ones (tests/simulated_graphs.py)."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE
from packages import quantize
from simulated_graphs import SimulatedCall

from mxconv.interop.transformers import drafts, quantize_model
from mxconv.interop.transformers.graphs import recordable, recorded_pass

PROMPT = torch.arange(5, 12, device=DEVICE)[None]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(recordable, "DEVICE_TYPES", ("cpu",))
        monkeypatch.setattr(recorded_pass, "RecordedCall", SimulatedCall)


def test_drafts_and_their_target_are_replays_of_the_same_slab(
    random_model: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
             "num_key_value_heads": 1}  # fmt: skip
    model, _ = random_model(model_type="llama", **small)  # float32, of BF16's values: equal tokens are no luck
    model.generation_config.max_length = None
    model.generation_config.eos_token_id = None
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "package", codec="bsfp")
    sixteen = copy.deepcopy(model).to(DEVICE)
    quantize_model(model, "bsfp", device=DEVICE)
    with drafts(tmp_path / "package", num_draft_tokens=[3], confidence=[0.0], device=DEVICE, check=True) as own:
        for each in (model, sixteen, sixteen):  # BSFP layers; 4-bit weights beside 16 bits, twice
            made = SimulatedCall.made
            expected = each.generate(PROMPT, max_new_tokens=6, do_sample=False)
            found = each.generate(PROMPT, custom_generate=own, max_new_tokens=6, do_sample=False)
            assert torch.equal(found, expected)
            run = own.last
            assert run is not None
            assert run.difference is None
            assert run.num_replays == run.num_rounds - 1 + run.levels[0].num_forwards
        assert SimulatedCall.made == made  # of the same model nothing anew
