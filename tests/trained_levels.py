"""Packages of the trained model in examples/models, and models made from it that differ in one thing each."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy
from checkpoints import write_safetensors

TRAINED = Path(__file__).parents[1] / "examples" / "models" / "pylib-0.2m"
EMBEDDING = "model.embed_tokens.weight"  # tied: the output head too
PROMPTS = (
    "import os\n\ndef ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "try:\n    import zlib\nexcept ImportError:\n",
)


def copy_trained(folder: Path) -> dict[str, np.ndarray]:
    """Copy the model's small files; its tensors are the caller's to write."""
    shutil.copytree(TRAINED, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return safetensors.numpy.load_file(TRAINED / "model.safetensors")


def write_noisy(folder: Path, noise: float = 0.1) -> Path:
    """The model with other weights near its own."""
    rng = np.random.default_rng(0)
    tensors = {
        name: (array * (1 + noise * rng.standard_normal(array.shape))).astype(ml_dtypes.bfloat16)
        for name, array in copy_trained(folder).items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_padded(folder: Path, num_rows: int = 1040) -> Path:
    """The model with rows for tokens that do not exist; logits choose them now and then, if one lets them."""
    tensors = copy_trained(folder)
    rows = tensors[EMBEDDING].astype(np.float32)
    frequent = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["("]
    padding = np.repeat(rows[[frequent]] * 3, num_rows - len(rows), 0)
    tensors[EMBEDDING] = np.concatenate([rows, padding]).astype(ml_dtypes.bfloat16)
    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": num_rows}))
    return folder


def write_renumbered(folder: Path) -> Path:
    """The model with other numbers for the same tokens but the first: another tokenizer, the same texts."""
    tensors = copy_trained(folder)
    order = np.concatenate([[0], 1 + np.random.default_rng(1).permutation(len(tensors[EMBEDDING]) - 1)])
    tensors[EMBEDDING] = tensors[EMBEDDING][order]  # row i is that of the token that was order[i]
    write_safetensors(folder / "model.safetensors", tensors)
    numbers = {int(old): new for new, old in enumerate(order)}
    members = json.loads((folder / "tokenizer.json").read_text())
    members["model"]["vocab"] = {text: numbers[number] for text, number in members["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(members))
    return folder


def write_mixture(folder: Path, num_experts: int = 4) -> Path:
    """The model as a Mixtral: each expert is its MLP with noise of its own, and a router at random chooses two."""
    rng, tensors = np.random.default_rng(2), copy_trained(folder)
    parts = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    for name in [name for name in tensors if ".mlp." in name]:
        array, (layer, _, part) = tensors.pop(name), name.removesuffix(".weight").partition(".mlp.")
        for expert in range(num_experts):
            noisy = array * (1 + 0.2 * rng.standard_normal(array.shape))
            tensors[f"{layer}.block_sparse_moe.experts.{expert}.{parts[part]}.weight"] = noisy
    config = json.loads((folder / "config.json").read_text())
    for layer in range(config["num_hidden_layers"]):
        router = rng.standard_normal((num_experts, config["hidden_size"]))
        tensors[f"model.layers.{layer}.block_sparse_moe.gate.weight"] = router
    kinds = {"model_type": "mixtral", "num_local_experts": num_experts, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config | kinds))
    bf16 = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", bf16)
    return folder
