"""The trained model of examples/models as a MiMo with an MTP module that is right now and then: fitted, not trained."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from checkpoints import write_safetensors
from tiny_levels import by_hand
from trained_levels import PROMPTS, TRAINED, copy_trained

from mxconv.arch.families.registry import describe_file
from mxconv.arrays import F32
from mxconv.checkpoint.source import open_checkpoint
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import States
from mxconv.engine.stored_weights import dense_weights
from mxconv.kernels.rowwise import rms_norm
from mxconv.text.tokenizer import Tokenizer

HIDDEN_SIZE, NUM_LAYERS = 64, 3  # of the trained model
NUM_TOKENS = 20  # of the texts after the prompts
MODULE = "model.mtp_layers.0."


def write_mimo(folder: Path, with_module: bool = True) -> Path:
    """The checkpoint; without its module it is what save_pretrained makes of it."""
    tensors = copy_trained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mimo", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    module = fitted_module(tensors) if with_module else {}
    sizes = {"q": HIDDEN_SIZE, "k": HIDDEN_SIZE // 2, "v": HIDDEN_SIZE // 2}
    for name in list(tensors | module):  # the family has biases, the trained model none
        layer, is_output, _ = name.partition("self_attn.o_proj.weight")
        if is_output:
            biases = {f"{layer}self_attn.{part}_proj.bias": np.zeros(size) for part, size in sizes.items()}
            tensors |= {name: array.astype(ml_dtypes.bfloat16) for name, array in biases.items()}
    write_safetensors(folder / "model.safetensors", tensors | module)
    return folder


def fitted_module(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Its projection is the least squares fit of the next state on a state and the token after it.

    Its layer is the model's last, made weak.
    """
    texts = [states_behind(prompt) for prompt in PROMPTS]
    embeddings = np.concatenate([embedded[1:] for embedded, _ in texts])
    states = np.concatenate([made[:-1] for _, made in texts])
    following = np.concatenate([made[1:] for _, made in texts])
    ones = np.ones(HIDDEN_SIZE, np.float32)
    taken = np.concatenate([rms_norm(part, ones, 1e-5) for part in (states, embeddings)], axis=1)
    weights, *_ = np.linalg.lstsq(taken, following, rcond=1e-3)
    last = f"model.layers.{NUM_LAYERS - 1}."
    made = {
        name.replace(last, MODULE): array.astype(np.float32) for name, array in tensors.items() if name.startswith(last)
    }
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        made[f"{MODULE}{part}.weight"] *= np.float32(0.02)
    made |= {f"{MODULE}{norm}_layernorm.weight": ones for norm in ("token", "hidden")}
    made[f"{MODULE}final_layernorm.weight"] = ones * np.sqrt(np.mean(following**2))
    made[f"{MODULE}input_proj.weight"] = weights.T
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in made.items()}


def states_behind(prompt: str) -> tuple[F32, F32]:
    """Of a prompt and what the trained model says after it: embeddings and last states, (n, hidden_size) each."""
    config = describe_file(TRAINED / "config.json")
    with open_checkpoint(TRAINED) as checkpoint:
        decoder = Decoder(config, dense_weights(checkpoint.tensors, config), "trained")
    ids = Tokenizer.from_folder(TRAINED).encode(prompt)
    text = [*ids, *by_hand(decoder, ids, NUM_TOKENS).token_ids]
    states = States(normed_last=True)
    decoder.forward(text, KVCache(config), states=states)
    assert states.values is not None
    return decoder.embedding.rows(np.array(text)), states.values[0]
