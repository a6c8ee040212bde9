"""A checkpoint of about 4 GB with a 1 GB embedding: how much memory does a conversion take, and how long?

python examples/make_large_checkpoint.py large
mxconv quantize large -o large-bsfp --codec bsfp      # prints its peak memory
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from mxconv.checkpoint.safetensors_header import format_header

HIDDEN, MLP, VOCABULARY, LAYERS = 4096, 11008, 131072, 7


def main(folder: str) -> None:
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (MLP, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": (HIDDEN, MLP)}
    header, _ = format_header([(name, "BF16", shape) for name, shape in shapes.items()], {"format": "pt"})
    block = (np.random.default_rng(0).standard_normal(1 << 24, np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    Path(folder).mkdir()
    with Path(folder, "model.safetensors").open("xb") as file:
        file.write(header)
        for shape in shapes.values():
            for begin in range(0, int(np.prod(shape)), block.size):
                file.write(block[: int(np.prod(shape)) - begin].tobytes())
    Path(folder, "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": VOCABULARY}))


if __name__ == "__main__":
    main(*sys.argv[1:])
