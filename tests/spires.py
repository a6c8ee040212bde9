"""SPIRe drafts near a target's layers on disk, and what they compute written out in torch, every token from scratch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from head_files import halves, write_tensors


def spire_config(target: Mapping[str, Any], target_layers: Sequence[int], **changes: Any) -> dict[str, Any]:
    """Of a draft of some layers of a target whose config.json is given."""
    own = {"model_type": "spire", "num_hidden_layers": len(target_layers), "target_layers": list(target_layers)}
    return {**target, **own, "layer_type": target["model_type"], "sink": 1, "window": 64} | changes


def spire_tensors(
    target: Mapping[str, np.ndarray], config: Mapping[str, Any], seed: int = 0, noise: float = 0.1
) -> dict[str, np.ndarray]:
    """The target's tensors, by their names, with noise, and memory weights that prefer no layer much."""
    rng = np.random.default_rng(seed)
    tensors = {name: array for name, array in target.items() if "layers." not in name}
    for index, layer in enumerate(config["target_layers"]):
        prefix = f"model.layers.{layer}."
        for name, array in target.items():
            if name.startswith(prefix):
                tensors[f"model.layers.{index}.{name.removeprefix(prefix)}"] = array
    changed = {
        name: array.astype(np.float32) * (1 + noise * rng.standard_normal(array.shape))
        for name, array in tensors.items()
    }
    num_layers = len(config["target_layers"])
    return {**changed, "spire.memory_weights": rng.standard_normal((num_layers, num_layers + 1))}


def tensors_by_type(target: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The same of two layers of any type, from a target of plain ones; without a head where that is tied."""
    tensors = spire_tensors(target, config)
    rng = np.random.default_rng(4)
    for layer in range(2):
        for part, heads in (("q", 4), ("k", 2), ("v", 2)):
            name = f"model.layers.{layer}.self_attn.{part}"
            if config["layer_type"] == "qwen2":
                tensors[f"{name}_proj.bias"] = rng.standard_normal(16 * heads)
            if config["layer_type"] == "qwen3" and part != "v":
                tensors[f"{name}_norm.weight"] = 1 + rng.standard_normal(16) / 4
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return tensors


def write_spire(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str = "F16") -> Path:
    return write_tensors(folder, dict(config), halves(tensors, dtype))


def torch_logits(folder: Path, states: np.ndarray, tokens: Sequence[int], past: Sequence[int] = ()) -> np.ndarray:
    """Logits (len(tokens), vocab_size) after each of some tokens, in float64; keys and values are made anew for each.

    Args:
        folder: of the draft.
        states: (num_layers, n, hidden_size) what feeds the layers that its own were copied from, of the first n tokens.
        tokens: those after them, which the draft evaluates.
        past: the first n tokens, for a draft that sees their embeddings.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = {name: t.double() for name, t in safetensors.torch.load_file(folder / "model.safetensors").items()}
    drafted: list[list[torch.Tensor]] = []
    logits = []
    for token in tokens:
        own, row = _row(config, weights, states, drafted, token, past)
        drafted.append(own)
        logits.append(row.numpy())
    return np.array(logits)


def _row(
    config: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    states: np.ndarray,
    drafted: Sequence[Sequence[torch.Tensor]],
    token: int,
    past: Sequence[int],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What a token after drafted ones computes, whose states are given: its own, embedding first, and its logits."""
    num_layers, eps = config["num_hidden_layers"], config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    num_past, position = states.shape[1], states.shape[1] + len(drafted)
    mixing = torch.softmax(weights["spire.memory_weights"], -1)
    embedding = weights["model.embed_tokens.weight"]

    x = embedding[token]
    own = [x]
    for layer in range(num_layers):

        def tensor(name: str, layer: int = layer) -> torch.Tensor:
            return weights[f"model.layers.{layer}.{name}.weight"]

        def project(source: torch.Tensor, part: str, at: int, layer: int = layer) -> torch.Tensor:
            normed = torch.nn.functional.rms_norm(source, source.shape, tensor("input_layernorm"), eps)
            y = weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"] @ normed
            y = y + weights.get(f"model.layers.{layer}.self_attn.{part}_proj.bias", torch.zeros(len(y)))
            y = y.view(heads if part == "q" else kv_heads, -1)
            head_norm = weights.get(f"model.layers.{layer}.self_attn.{part}_norm.weight")
            if head_norm is not None:
                y = torch.nn.functional.rms_norm(y, y.shape[-1:], head_norm, eps)
            return y if part == "v" else _rope(y, at, config["rope_theta"])

        def memory(at: int, layer: int = layer) -> torch.Tensor:
            if at < num_past:
                if config.get("past_memory") == "embeddings":
                    return embedding[past[at]]
                return torch.from_numpy(states[layer, at]).double()
            return sum(share * state for share, state in zip(mixing[layer], drafted[at - num_past], strict=True))

        seen = [at for at in range(position) if at < config["sink"] or at > position - config["window"]]
        keys = torch.stack([*(project(memory(at), "k", at) for at in seen), project(x, "k", position)])
        values = torch.stack([*(project(memory(at), "v", at) for at in seen), project(x, "v", position)])
        query = project(x, "q", position)
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = keys[:, shared] @ query[head] / query.shape[-1] ** 0.5
            mixed.append(torch.softmax(scores, 0) @ values[:, shared])
        x = x + tensor("self_attn.o_proj") @ torch.cat(mixed)
        normed = torch.nn.functional.rms_norm(x, x.shape, tensor("post_attention_layernorm"), eps)
        gated = torch.nn.functional.silu(tensor("mlp.gate_proj") @ normed) * (tensor("mlp.up_proj") @ normed)
        x = x + tensor("mlp.down_proj") @ gated
        own.append(x)
    last = torch.nn.functional.rms_norm(x, x.shape, weights["model.norm.weight"], eps)
    return own, weights.get("lm_head.weight", embedding) @ last


def _rope(heads: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """Rotate the pairs (j, j + head_dim / 2) of each head."""
    half = heads.shape[-1] // 2
    angles = position * theta ** -(torch.arange(half, dtype=torch.float64) / half)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
