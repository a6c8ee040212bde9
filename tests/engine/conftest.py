"""Tiny random models, and for those who compare the same weights in transformers, float32, eager attention."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import DRAFTS, TARGETS, native_copy, values_of, with_format

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.matrix import DenseMatrix

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
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, linear scaling": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, one KV head": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 10},
    "mistral, window": {"model_type": "mistral", "sliding_window": 5},
    "mistral, long window": {"model_type": "mistral", "sliding_window": 67, "num_key_value_heads": 4},
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
# in which they differ from what is among the families, whose tests compare all of them in the same ways
IN_TURN = ("llama, tied", "llama, one KV head", "mistral, long window", "qwen3, biases and window")


@dataclass(frozen=True)
class Oracle:
    """A decoder of ours and the same model in transformers."""

    decoder: Decoder
    weights: ModelWeights
    fields: dict[str, Any]  # of config.json

    @cached_property
    def torch_model(self) -> Any:
        """A torch.nn.Module; without transformers the test is skipped."""
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        torch.set_num_threads(1)  # tiny models: threads cost more than they bring
        config = transformers.AutoConfig.for_model(**self.fields)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        matrices = {name: values_of(matrix) for name, matrix in self.weights.matrices.items()}
        tensors = {**matrices, **self.weights.vectors}
        model.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
        return model

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """(num_tokens, vocab_size) float32, as transformers computes them."""
        return torch_logits(self.torch_model, token_ids)

    def text(self, num_tokens: int) -> list[int]:
        """Random token ids."""
        ids = np.random.default_rng(7).integers(0, self.decoder.config.vocab_size, num_tokens)
        return [int(token) for token in ids]


def torch_logits(torch_model: Any, token_ids: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        found: np.ndarray = torch_model(torch.tensor([token_ids])).logits[0].numpy()
    return found


def shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of every tensor, but for a tied output matrix."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    projections = {
        **{f"self_attn.{name}_proj": (keys, hidden, config.qkv_bias) for name in "kv"},
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        **{f"mlp.{name}_proj": (inner, hidden, config.mlp_bias) for name in ("gate", "up")},
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        for name, (out_features, in_features, has_bias) in projections.items():
            yield f"model.layers.{layer}.{name}.weight", (out_features, in_features)
            if has_bias:
                yield f"model.layers.{layer}.{name}.bias", (out_features,)
        for name, length in norms.items():
            yield f"model.layers.{layer}.{name}.weight", (length,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def random_weights(config: ModelConfig, float_format: FloatFormat) -> ModelWeights:
    """Weights large enough to make logits that differ, norms around one, no bias at zero; exact in this format."""
    rng = np.random.default_rng(5)
    matrices, vectors = {}, {}
    for name, shape in shapes(config):
        values = rng.standard_normal(shape, np.float32) * np.float32(0.2 if len(shape) == 2 else 0.3)
        values += np.float32(name.endswith("norm.weight"))
        patterns = float_format.encode(values)
        if len(shape) == 2:
            matrices[name] = DenseMatrix(patterns, float_format)
        else:
            vectors[name] = float_format.decode(patterns)
    if config.tie_word_embeddings:
        matrices["lm_head.weight"] = matrices["model.embed_tokens.weight"]
    return ModelWeights(matrices, vectors)


@pytest.fixture(scope="session")
def tiny_oracle() -> Callable[[str], Oracle]:
    """Makes (once) a tiny random model of a named architecture."""

    @cache
    def make(architecture: str) -> Oracle:
        fields = SIZES | ARCHITECTURES[architecture]
        config = describe_values(fields)
        weights = random_weights(config, FP16 if architecture.startswith("qwen") else BF16)
        return Oracle(Decoder(config, weights, architecture), weights, fields)

    return make


@pytest.fixture(scope="session", params=IN_TURN)
def architecture(request: pytest.FixtureRequest) -> str:
    """The name of some architectures in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def oracle(architecture: str, tiny_oracle: Callable[[str], Oracle]) -> Oracle:
    """Some architectures in turn."""
    return tiny_oracle(architecture)


@pytest.fixture
def in_turn(architecture: str) -> Matrices:
    """Native implementations take turns, from architecture to architecture; on two threads."""
    names = native_names()
    return Matrices(choose_engine(names[IN_TURN.index(architecture) % len(names)], 2))


@pytest.fixture(scope="session")
def shared_oracle(shared_folder: Path) -> Any:
    """A trained model, as `Oracle` has it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch_model = transformers.AutoModelForCausalLM.from_pretrained(
        shared_folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    fields = json.loads((shared_folder / "config.json").read_text())
    float_format = {"bfloat16": BF16, "float16": FP16}[fields["torch_dtype"]]
    tensors = {name: tensor.numpy() for name, tensor in torch_model.state_dict().items()}
    matrices = {n: DenseMatrix(float_format.encode(v), float_format) for n, v in tensors.items() if v.ndim == 2}
    weights = ModelWeights(matrices, {name: values for name, values in tensors.items() if values.ndim == 1})
    config = describe_file(shared_folder / "config.json")
    made = Oracle(Decoder(config, weights, shared_folder.name), weights, fields)
    vars(made)["torch_model"] = torch_model
    return made


@pytest.fixture(scope="session")
def native(tiny_oracle: Callable[[str], Oracle]) -> Callable[..., Decoder]:
    """Makes (once) a tiny model of an architecture in a format, on an implementation and a number of threads."""

    @cache
    def make(architecture: str, float_format: str, form: str, implementation: str, num_threads: int) -> Decoder:
        oracle = tiny_oracle(architecture)
        weights = with_format(oracle.weights, FORMATS[float_format])
        matrices = Matrices(choose_engine(implementation, num_threads))
        return native_copy(oracle.decoder.config, weights, matrices, (TARGETS | DRAFTS)[form])

    return make
