"""Torch models and packages of the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packages import quantize
from torch_models import packaged_model
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)  # tiny models: threads cost more than they bring

MODELS = Path(__file__).parents[3] / "examples" / "models"
TARGET, SMALL = MODELS / "pylib-1.5m", MODELS / "pylib-0.2m"
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2}  # fmt: skip


@pytest.fixture(scope="session")
def pylib() -> Any:
    """The trained target, float32."""
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    model.generation_config.max_length = None  # transformers logs a line whenever both limits are set
    return model


@pytest.fixture(scope="session")
def three_levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target <- BSFP draft <- pylib-0.2m."""
    package = tmp_path_factory.mktemp("drafts") / "package"
    quantize(TARGET, package, codec="bsfp", drafts=(f"checkpoint:{SMALL}",))
    return package


@pytest.fixture(scope="session")
def prompts() -> list[torch.Tensor]:
    """(1, length) ids of the example prompts."""
    from mxconv.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(TARGET)
    lines = (MODELS.parent / "prompts.jsonl").read_text().splitlines()
    return [torch.tensor([tokenizer.encode(json.loads(line)["prompt"])]) for line in lines]


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """A tiny random model of an architecture, float32, and its MXFP4 package."""

    def make(**changes: Any) -> tuple[Any, Path]:
        model, package = packaged_model(tmp_path_factory.mktemp("random"), **SIZES | changes)
        return model.float(), package

    return make
