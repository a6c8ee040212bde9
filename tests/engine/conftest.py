"""Tiny models of random weights; for those who compare, the same in transformers, float32, eager attention."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import DRAFTS, TARGETS, native_copy, values_of, with_format

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.arch.required_tensors import required_tensors
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine
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
# made without torch, so that tests of native kernels run wherever these do; tests of families have all others
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, one KV head": {
        "model_type": "llama",
        "num_key_value_heads": 1,
        "head_dim": 10,
        "tie_word_embeddings": True,
    },
    "mistral, window": {"model_type": "mistral", "sliding_window": 5},
    "mistral, long window": {"model_type": "mistral", "sliding_window": 67, "num_key_value_heads": 4},
    "qwen2, window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3, biases and window": {
        "model_type": "qwen3",
        "head_dim": 16,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
NUM_TOKENS = 80


@dataclass(frozen=True, eq=False)
class TinyModel:
    """A model by NumPy, and the same in transformers; without transformers a test that asks for it is skipped."""

    config: ModelConfig
    weights: ModelWeights
    make_torch_model: Callable[[], Any]
    folder: Path = Path()  # of the checkpoint that transformers saved, where it did

    @cached_property
    def decoder(self) -> Decoder:
        return Decoder(self.config, self.weights, "tiny")

    @cached_property
    def torch_model(self) -> Any:
        """A torch.nn.Module."""
        pytest.importorskip("torch").set_num_threads(1)  # tiny models: threads cost more than they bring
        pytest.importorskip("transformers")
        return self.make_torch_model()

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """(num_tokens, vocab_size) float32, as transformers computes them."""
        model = self.torch_model
        from family_checkpoints import logits_of

        return logits_of(model, token_ids)

    def text(self, num_tokens: int) -> list[int]:
        """Random token ids."""
        ids = np.random.default_rng(7).integers(0, self.config.vocab_size, num_tokens)
        return [int(token) for token in ids]

    @property
    def token_ids(self) -> list[int]:
        return self.text(NUM_TOKENS)

    @cached_property
    def expected(self) -> np.ndarray:
        """What transformers makes of these."""
        return self.logits(self.token_ids)


def random_weights(config: ModelConfig, float_format: FloatFormat) -> ModelWeights:
    """Weights large enough to make logits that differ, norms around one, no bias at zero; exact in this format."""
    rng = np.random.default_rng(5)
    matrices, vectors = {}, {}
    for name, shape in required_tensors(config, ()).items():
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
def tiny_model() -> Callable[[str], TinyModel]:
    """Makes (once) a tiny random model of a named architecture."""

    @cache
    def make(architecture: str) -> TinyModel:
        fields = SIZES | ARCHITECTURES[architecture]
        config = describe_values(fields)
        weights = random_weights(config, FP16 if architecture.startswith("qwen") else BF16)

        def torch_model() -> Any:
            import torch
            import transformers

            auto = transformers.AutoConfig.for_model(**fields)
            model = transformers.AutoModelForCausalLM.from_config(auto, attn_implementation="eager").eval()
            tensors = {name: values_of(matrix) for name, matrix in weights.matrices.items()} | {**weights.vectors}
            model.load_state_dict({name: torch.from_numpy(values) for name, values in tensors.items()})
            return model

        return TinyModel(config, weights, torch_model)

    return make


@pytest.fixture(scope="session")
def family_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Makes (once) the checkpoint of a family, by transformers."""
    from family_checkpoints import make_model, write_checkpoint

    @cache
    def make(name: str) -> TinyModel:
        folder = tmp_path_factory.mktemp("family")
        model = make_model(name)
        write_checkpoint(model, folder)
        config = describe_file(folder / "config.json")
        with open_checkpoint(folder) as checkpoint:
            weights = dense_weights(checkpoint.tensors, config)
        return TinyModel(config, weights, lambda: model, folder)

    return make


@pytest.fixture(scope="session")
def native(tiny_model: Callable[[str], TinyModel]) -> Callable[..., Decoder]:
    """Makes (once) a tiny model of an architecture in a format, on an implementation and a number of threads."""

    @cache
    def make(architecture: str, float_format: str, form: str, implementation: str, num_threads: int) -> Decoder:
        model = tiny_model(architecture)
        weights = with_format(model.weights, FORMATS[float_format])
        matrices = Matrices(choose_engine(implementation, num_threads))
        return native_copy(model.config, weights, matrices, (TARGETS | DRAFTS)[form])

    return make
