"""EAGLE-3 heads with random weights on disk, and what they compute written out in torch, the whole text every time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from checkpoints import write_safetensors

from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.eagle3 import Eagle3, target_tokens
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.kernels.engine import choose_engine

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16}


def eagle3_config(
    vocab_size: int, hidden_size: int, changes: dict[str, Any] | None = None, layer: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": vocab_size,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": None,
        "target_hidden_size": None,
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
        }
        | (layer or {}),
    } | (changes or {})


def eagle3_tensors(config: dict[str, Any], known: Sequence[int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """As the `speculators` format names them.

    Args:
        config: of the head.
        known: the target's ids of its tokens, where it has a vocabulary of its own.
        seed: of all weights.
    """
    rng, layer = np.random.default_rng(seed), config["transformer_layer_config"]
    size, heads, kv_heads = layer["hidden_size"], layer["num_attention_heads"], layer["num_key_value_heads"]
    head = layer.get("head_dim") or (128 if layer["model_type"] == "qwen3" else size // heads)
    read = config["target_hidden_size"] or size
    num_states = len(config["eagle_aux_hidden_state_layer_ids"] or range(3))
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (layer["vocab_size"], size),
        "fc.weight": (size, num_states * read),
        "layers.0.hidden_norm.weight": (size,),
        "norm.weight": (size,),
        "lm_head.weight": (config["draft_vocab_size"], size),
    }
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (num_states * read,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{place}.weight": (read,) for place in range(num_states)}
    for index in range(layer["num_hidden_layers"]):
        name, attended = f"layers.{index}", size if index else 2 * size
        rows = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (count, attended) for part, count in rows.items()}
        if layer.get("attention_bias"):
            rows["o"] = size
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (count,) for part, count in rows.items()}
        if layer["model_type"] == "qwen3":
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (head,) for part in "qk"}
        shapes |= {
            f"{name}.self_attn.o_proj.weight": (size, heads * head),
            f"{name}.mlp.gate_proj.weight": (layer["intermediate_size"], size),
            f"{name}.mlp.up_proj.weight": (layer["intermediate_size"], size),
            f"{name}.mlp.down_proj.weight": (size, layer["intermediate_size"]),
            f"{name}.input_layernorm.weight": (size,),
            f"{name}.post_attention_layernorm.weight": (size,),
        }
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape).astype(np.float32)
        scale = 0.25 if len(shape) == 1 else 1.0 if name.startswith("embed") else 1.5 / np.sqrt(shape[1])
        tensors[name] = noise * np.float32(scale) + np.float32(len(shape) == 1 and not name.endswith("bias"))
    if known is not None:
        marks = np.zeros(layer["vocab_size"], bool)
        marks[list(known)] = True
        tensors |= {"d2t": np.array(known, np.int64) - np.arange(len(known)), "t2d": marks}
    return tensors


def write_eagle3(
    folder: Path, config: dict[str, Any], dtype: str = "F16", known: Sequence[int] | None = None, seed: int = 0
) -> Path:
    tensors = eagle3_tensors(config, known, seed)
    return write_tensors(
        folder, config, {n: a.astype(DTYPES[dtype]) if a.dtype.kind == "f" else a for n, a in tensors.items()}
    )


def write_tensors(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def open_eagle3(folder: Path, kernel: str = "numpy", num_layers: int = 8) -> Eagle3:
    """A head in 16 bits for a target of so many layers, alone."""
    config, tensors = Eagle3Config.from_file(folder / "config.json"), open_checkpoint(folder).tensors
    weights = dense_weights(tensors, make=Matrices(choose_engine(kernel)))
    tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, "head")
    return Eagle3(config, weights, tokens, config.layers_of(num_layers), "head")


class TorchEagle3:
    """The head in float64, over whole texts, without a cache."""

    def __init__(self, folder: Path) -> None:
        import safetensors.torch

        stored = safetensors.torch.load_file(folder / "model.safetensors")
        self.config = json.loads((folder / "config.json").read_text())
        self.layer = self.config["transformer_layer_config"]
        self.weights = {name: tensor.double() for name, tensor in stored.items() if tensor.is_floating_point()}
        self.d2t = stored.get("d2t")

    def logits(self, states: np.ndarray, tokens: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """(len(drafted) + 1, draft_vocab_size): after the text, and after each further token.

        Args:
            states: (num_states, len(tokens) - 1, hidden_size) of the target, in the order of the layer ids.
            tokens: the text.
            drafted: what follows.
        """
        pairs, found = self._fused(torch.from_numpy(states).double()), []
        text = list(tokens[1:])
        for token in (*drafted, None):
            made = self._layers(pairs, text)[-1:]
            normed = self._norm("norm", made)
            found.append(normed @ self.weights["lm_head.weight"].T)
            pairs = torch.cat([pairs, normed if self.config.get("norm_output") else made])
            text.append(token)
        return torch.cat(found).numpy()

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(
            x, x.shape[-1:], self.weights[f"{name}.weight"], eps=self.layer["rms_norm_eps"]
        )

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _fused(self, states: torch.Tensor) -> torch.Tensor:
        if self.config.get("fc_norm"):
            states = torch.stack([self._norm(f"fc_norm.{place}", part) for place, part in enumerate(states)])
        joined = torch.cat(list(states), dim=1)
        if self.config.get("norm_before_fc"):
            joined = self._norm("input_norm", joined)
        return joined @ self.weights["fc.weight"].T

    def _layers(self, features: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        for index in range(self.layer["num_hidden_layers"]):
            name = f"layers.{index}"
            if index == 0:
                embedded = self._norm(f"{name}.input_layernorm", self.weights["embed_tokens.weight"][list(tokens)])
                normed = self._norm(f"{name}.hidden_norm", features)
                taken = torch.cat([embedded, normed], dim=1)
                x = normed if self.config["norm_before_residual"] else features
            else:
                taken = self._norm(f"{name}.input_layernorm", x)
            x = x + self._attention(f"{name}.self_attn", taken)
            h = self._norm(f"{name}.post_attention_layernorm", x)
            gate = torch.nn.functional.silu(self._linear(f"{name}.mlp.gate_proj", h))
            x = x + self._linear(f"{name}.mlp.down_proj", gate * self._linear(f"{name}.mlp.up_proj", h))
        return x

    def _attention(self, name: str, taken: torch.Tensor) -> torch.Tensor:
        heads = {"q": self.layer["num_attention_heads"]} | dict.fromkeys("kv", self.layer["num_key_value_heads"])
        parts = {part: self._linear(f"{name}.{part}_proj", taken).unflatten(1, (n, -1)) for part, n in heads.items()}
        for part in "qk":
            if f"{name}.{part}_norm.weight" in self.weights:
                parts[part] = self._norm(f"{name}.{part}_norm", parts[part])
            parts[part] = self._rotated(parts[part])
        query, key, value = (parts[part].transpose(0, 1) for part in "qkv")
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self._linear(f"{name}.o_proj", mixed.transpose(0, 1).flatten(1))

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """By complex numbers; the first pair stands at the position of its token, 1."""
        half, theta = x.shape[-1] // 2, self.layer.get("rope_theta", 10000.0)
        angles = torch.arange(1, len(x) + 1).double()[:, None] / theta ** (torch.arange(half).double() / half)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([turned.real, turned.imag], dim=-1)
