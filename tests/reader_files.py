"""A draft of every kind that reads hidden states, for the trained model: random, or of its own layers, in BF16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from head_files import dflash_config, eagle3_config, write_dflash, write_eagle3
from random_heads import write_heads
from reader_levels import HIDDEN_SIZE, VOCAB_SIZE
from speculators import speculator_config, write_speculator
from spires import spire_config, spire_tensors, write_spire
from trained_levels import TRAINED

OWN_SIZES = {"hidden_size": HIDDEN_SIZE, "vocab_size": VOCAB_SIZE}
TENSORS = safetensors.numpy.load_file(TRAINED / "model.safetensors")
TARGET = json.loads((TRAINED / "config.json").read_text())


def speculator(folder: Path, **sizes: int) -> Path:
    sizes = OWN_SIZES | sizes
    config = speculator_config(sizes["hidden_size"], sizes["vocab_size"], {"scale_input": True})
    return write_speculator(folder, config, "BF16")


def spire(folder: Path, **sizes: int) -> Path:
    """A copy of two layers, over a window shorter than a prompt and what follows; of other sizes, random numbers."""
    config = spire_config(TARGET, (1, 2), window=16)
    tensors, sizes = spire_tensors(TENSORS, config, noise=0.05), OWN_SIZES | sizes
    if sizes != OWN_SIZES:
        other = {HIDDEN_SIZE: sizes["hidden_size"], VOCAB_SIZE: sizes["vocab_size"]}
        random = np.random.default_rng(0)
        tensors = {n: random.standard_normal([other.get(size, size) for size in a.shape]) for n, a in tensors.items()}
    return write_spire(folder, config | sizes, tensors, "BF16")


def eagle3(folder: Path, **sizes: int) -> Path:
    changes: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": None}
    if sizes:
        changes["draft_vocab_size"] = 100
    config = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, changes)
    config |= {"transformer_layer_config": config["transformer_layer_config"] | sizes}
    return write_eagle3(folder, config, "BF16", range(100) if sizes else None)


def medusa(folder: Path, **sizes: int) -> Path:
    write_heads(folder, "medusa", TARGET | sizes, "BF16")
    return folder


def dflash(folder: Path, **sizes: int) -> Path:
    config = dflash_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": 100} if sizes else {})
    config |= {"transformer_layer_config": config["transformer_layer_config"] | sizes}
    return write_dflash(folder, config, "BF16", range(100) if sizes else None)


Write = Callable[..., Path]
WRITERS: dict[str, Write] = {
    "speculator": speculator,
    "spire": spire,
    "eagle3": eagle3,
    "medusa": medusa,
    "dflash": dflash,
}
