"""Models with an oracle beside them: the same weights in transformers, float32, eager attention.

Where transformers and torch are not installed the models have other weights and no oracle; what needs none runs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import DRAFTS, TARGETS, native_copy, with_format
from random_weights import random_weights

from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.matrix import DenseMatrix

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError:
    has_oracle = False
else:
    has_oracle = True
    torch.set_num_threads(1)  # tiny models: threads cost more than they bring

SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, llama3 scaling": {"model_type": "llama", "rope_parameters": LLAMA3},
    "llama, linear scaling": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, one KV head": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 10},
    "mistral, window": {"model_type": "mistral", "sliding_window": 5},
    "mistral, long window": {"model_type": "mistral", "sliding_window": 67, "num_key_value_heads": 4},
    "mistral, no window": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6},
    "qwen2, window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3, biases and window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@dataclass(frozen=True)
class Oracle:
    """A decoder of ours and the same model in transformers."""

    decoder: Decoder
    weights: ModelWeights
    torch_model: Any  # torch.nn.Module; None without one

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """(num_tokens, vocab_size) float32, as transformers computes them."""
        if self.torch_model is None:
            pytest.skip("torch and transformers are not installed")
        with torch.no_grad():
            return self.torch_model(torch.tensor([token_ids])).logits[0].numpy()

    def text(self, num_tokens: int) -> list[int]:
        """Random token ids."""
        ids = np.random.default_rng(7).integers(0, self.decoder.config.vocab_size, num_tokens)
        return [int(token) for token in ids]


def weights_of(torch_model: Any, float_format: FloatFormat) -> ModelWeights:
    """The tensors of a transformers model whose values are exact in this format. Ties are resolved."""
    tensors = {name: tensor.numpy() for name, tensor in torch_model.state_dict().items()}
    return ModelWeights(
        {
            name: DenseMatrix(float_format.encode(values), float_format)
            for name, values in tensors.items()
            if values.ndim == 2
        },
        {name: values for name, values in tensors.items() if values.ndim == 1},
    )


def randomize(torch_model: Any, float_format: FloatFormat) -> None:
    """Weights large enough to make logits that differ, norms around one, no bias at its initial zero."""
    generator = torch.Generator().manual_seed(5)
    for name, tensor in torch_model.named_parameters():
        values = torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.ndim == 2 else 0.3)
        values += 1.0 if name.endswith("norm.weight") else 0.0
        rounded = float_format.decode(float_format.encode(values.numpy()))
        tensor.data.copy_(torch.from_numpy(rounded))


@pytest.fixture(scope="session")
def tiny_oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """Makes (once) a tiny random model of a named architecture, its config.json written by transformers."""
    made: dict[str, Oracle] = {}

    def make(architecture: str) -> Oracle:
        if architecture not in made:
            float_format = FP16 if architecture.startswith("qwen") else BF16
            fields = SIZES | ARCHITECTURES[architecture]
            if not has_oracle:
                config = describe_values(fields)
                weights = random_weights(config, float_format)
                made[architecture] = Oracle(Decoder(config, weights, architecture), weights, None)
                return made[architecture]
            torch_config = AutoConfig.for_model(**fields)
            torch_model = AutoModelForCausalLM.from_config(torch_config, attn_implementation="eager").eval()
            randomize(torch_model, float_format)
            folder = tmp_path_factory.mktemp("config")
            torch_config.save_pretrained(folder)
            config = describe_file(folder / "config.json")
            weights = weights_of(torch_model, float_format)
            made[architecture] = Oracle(Decoder(config, weights, architecture), weights, torch_model)
        return made[architecture]

    return make


@pytest.fixture(scope="session", params=list(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    """The name of every architecture in turn."""
    name: str = request.param
    return name


@pytest.fixture
def in_turn(architecture: str) -> Matrices:
    """Native implementations take turns, from architecture to architecture; on two threads."""
    names = native_names()
    return Matrices(choose_engine(names[list(ARCHITECTURES).index(architecture) % len(names)], 2))


@pytest.fixture(scope="session")
def architectures() -> list[str]:
    """All their names."""
    return list(ARCHITECTURES)


@pytest.fixture(scope="session")
def oracle(architecture: str, tiny_oracle: Callable[[str], Oracle]) -> Oracle:
    """Every architecture in turn."""
    return tiny_oracle(architecture)


@pytest.fixture(scope="session")
def shared_oracle(shared_folder: Path) -> Oracle:
    if not has_oracle:
        pytest.skip("torch and transformers are not installed")
    torch_model = AutoModelForCausalLM.from_pretrained(
        shared_folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    config_path = shared_folder / "config.json"
    dtype = json.loads(config_path.read_text())["torch_dtype"]
    weights = weights_of(torch_model, {"bfloat16": BF16, "float16": FP16}[dtype])
    return Oracle(Decoder(describe_file(config_path), weights, shared_folder.name), weights, torch_model)


@pytest.fixture(scope="session")
def native(tiny_oracle: Callable[[str], Any]) -> Callable[..., Decoder]:
    """Makes (once) a tiny model of an architecture in a format, on an implementation and a number of threads."""

    @cache
    def make(architecture: str, float_format: str, form: str, implementation: str, num_threads: int) -> Decoder:
        oracle = tiny_oracle(architecture)
        weights = with_format(oracle.weights, FORMATS[float_format])
        matrices = Matrices(choose_engine(implementation, num_threads))
        return native_copy(oracle.decoder.config, weights, matrices, (TARGETS | DRAFTS)[form])

    return make
