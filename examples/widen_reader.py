"""Fit a draft that reads hidden states to a target whose every dimension was repeated: it says what it said.

    python examples/widen_reader.py DRAFT OUT --factor 32 [--target SMALL]

A model that is widened by repeating its dimensions FACTOR times says what the small one says, from states that are the
small one's, repeated. What reads such a state then reads each number FACTOR times at a FACTOR-th of its weight, which
is exact where FACTOR is a power of two and nothing underflows, as F16 may. DRAFT is a folder that was trained for the
small target: of an MLP speculator and an EAGLE-3 head the first matrix alone becomes wider, since their own states are
their own; a SPIRe draft, whose states are the target's, becomes wider throughout. A head without an embedding reads its
target's: it is given that of the small one, the folder SMALL.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]


def widen_speculator(config: Config, tensors: Tensors, factor: int) -> None:
    tensors["speculator.proj.0.weight"] = _reading(tensors["speculator.proj.0.weight"], factor)
    config["inner_dim"] = config["inner_dim"] or config["emb_dim"]
    config["emb_dim"] *= factor


def widen_eagle3(config: Config, tensors: Tensors, factor: int) -> None:
    size = config["target_hidden_size"] or config["transformer_layer_config"]["hidden_size"]
    states = tensors["fc.weight"].split(size, dim=1)  # joined, each is repeated by itself
    tensors["fc.weight"] = torch.cat([_reading(state, factor) for state in states], dim=1)
    if "input_norm.weight" in tensors:
        norms = tensors["input_norm.weight"].split(size)
        tensors["input_norm.weight"] = torch.cat([norm.repeat(factor) for norm in norms])
    for name in [name for name in tensors if name.startswith("fc_norm.")]:
        tensors[name] = tensors[name].repeat(factor)
    config["target_hidden_size"] = size * factor


def widen_spire(config: Config, tensors: Tensors, factor: int) -> None:
    embedding = tensors["model.embed_tokens.weight"]
    head = tensors.pop("lm_head.weight", embedding)  # tied: the head divides and the embedding does not
    for name, tensor in list(tensors.items()):
        if name.endswith(("layernorm.weight", "model.norm.weight", ".bias")):
            tensors[name] = tensor.repeat(factor)
        elif name.endswith("_proj.weight"):
            tensors[name] = _reading(tensor.repeat(factor, 1), factor)
    tensors |= {"model.embed_tokens.weight": embedding.repeat(1, factor), "lm_head.weight": _reading(head, factor)}
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        config[key] *= factor
    config["tie_word_embeddings"] = False


KINDS: dict[str, Callable[[Config, Tensors, int], None]] = {
    "mlp_speculator": widen_speculator,
    "eagle3": widen_eagle3,
    "spire": widen_spire,
}


def _reading(weight: torch.Tensor, factor: int) -> torch.Tensor:
    """A matrix whose input is repeated."""
    return (weight / factor).repeat(1, factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--factor", type=int, required=True)
    parser.add_argument("--target", type=Path, help="the small target, for an EAGLE-3 head that reads its embedding")
    arguments = parser.parse_args()
    factor: int = arguments.factor
    if factor < 1 or factor & (factor - 1):
        parser.error(f"--factor {factor}: a power of two is required, so that dividing by it is exact")
    config = json.loads((arguments.draft / "config.json").read_text())
    kind = config.get("model_type") or config.get("speculators_model_type")
    if kind not in KINDS:
        parser.error(f"{arguments.draft}: a draft of kind {kind!r}; one of {', '.join(KINDS)} is required")
    tensors = load_file(arguments.draft / "model.safetensors")
    if kind == "eagle3" and "embed_tokens.weight" not in tensors:
        if arguments.target is None:
            parser.error(f"{arguments.draft}: no embed_tokens.weight; --target is required, whose embedding it reads")
        with safe_open(arguments.target / "model.safetensors", "pt") as file:
            tensors["embed_tokens.weight"] = file.get_tensor("model.embed_tokens.weight")
    KINDS[kind](config, tensors, factor)
    arguments.output.mkdir(parents=True)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, arguments.output / "model.safetensors", metadata={"format": "pt"})
    (arguments.output / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(f"{arguments.output}: {sum(tensor.numel() for tensor in whole.values()):,} parameters")


if __name__ == "__main__":
    main()
