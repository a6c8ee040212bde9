"""MLP speculators with random weights on disk, and what they compute written out in torch, stage by stage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from head_files import halves, write_tensors


def speculator_config(emb_dim: int, vocab_size: int, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "emb_dim": emb_dim,
        "inner_dim": 48,
        "model_type": "mlp_speculator",
        "n_candidates": 5,
        "n_predict": 3,
        "top_k_tokens_per_head": [4, 3, 2],
        "vocab_size": vocab_size,
    } | (changes or {})


def speculator_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """As the Hub's accelerators name them; of tied weights those that a file keeps: each once."""
    rng = np.random.default_rng(seed)
    inner = config["inner_dim"] or config["emb_dim"]
    stages, tied, vocab_size = config["n_predict"], config.get("tie_weights", False), config["vocab_size"]
    tensors: dict[str, np.ndarray] = {}
    for stage in range(stages):
        read = inner if stage else config["emb_dim"]
        if stage < (2 if tied else stages):
            tensors[f"speculator.proj.{stage}.weight"] = rng.standard_normal((inner, read)) / np.sqrt(read)
        if stage < (1 if tied else stages):
            tensors |= {
                f"speculator.emb.{stage}.weight": rng.standard_normal((vocab_size, inner)) / np.sqrt(inner),
                f"speculator.head.{stage}.weight": rng.standard_normal((vocab_size, inner)) / 2,
                f"speculator.ln.{stage}.weight": 1 + rng.standard_normal(inner) / 4,
                f"speculator.ln.{stage}.bias": rng.standard_normal(inner) / 4,
            }
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def write_speculator(folder: Path, config: dict[str, Any], dtype: str = "F16") -> Path:
    return write_tensors(folder, config, halves(speculator_tensors(config), dtype))


def torch_logits(folder: Path, state: np.ndarray, tokens: list[int]) -> list[np.ndarray]:
    """Logits of every stage in float64, where the text goes on with these tokens.

    Args:
        folder: of the speculator.
        state: (emb_dim,) of the target.
        tokens: the one that the state has chosen, and those after it.
    """
    import safetensors.torch

    config = json.loads((folder / "config.json").read_text())
    weights = {n: t.double() for n, t in safetensors.torch.load_file(folder / "model.safetensors").items()}
    tied, stages = config.get("tie_weights", False), config["n_predict"]
    inner = config["inner_dim"] or config["emb_dim"]
    state_weight = 0.5 ** (0.5 / stages)
    token_weight = ((1 - state_weight**2) * inner / 2) ** 0.5
    x = torch.from_numpy(state).double()
    if config.get("scale_input", False):
        x = torch.nn.functional.rms_norm(x, x.shape, eps=1e-6) / 2**0.5
    found = []
    for stage, token in zip(range(stages), tokens, strict=False):
        own, projection = (0, min(stage, 1)) if tied else (stage, stage)
        x = weights[f"speculator.proj.{projection}.weight"] @ x
        x = x + token_weight / state_weight * weights[f"speculator.emb.{own}.weight"][token]
        x = torch.nn.functional.rms_norm(x, x.shape, weights[f"speculator.ln.{own}.weight"], eps=1e-6)
        x = torch.nn.functional.gelu(x + weights[f"speculator.ln.{own}.bias"])
        found.append((weights[f"speculator.head.{own}.weight"] @ x).numpy())
    return found
