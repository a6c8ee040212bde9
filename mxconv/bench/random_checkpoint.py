"""A checkpoint of random weights, for measuring conversions without a download."""

import json
from pathlib import Path

import numpy as np

from mxconv.checkpoint.safetensors_header import format_header
from mxconv.codecs.float16 import BF16
from mxconv.progress import Progress, silent

SIGMA = 0.02
ROWS, COLUMNS = 4096, 4096
BLOCK = 1 << 22  # weights that repeat; conversion times do not depend on their values


def write_random_checkpoint(folder: Path, num_bytes: int, progress: Progress = silent) -> None:
    """Write BF16 matrices of 4096 x 4096 and a smaller last one, about `num_bytes` in all, in slices.

    Args:
        folder: exists, and is empty.
    """
    num_rows = max(num_bytes // (2 * COLUMNS), 1)
    shapes = [(min(ROWS, num_rows - first), COLUMNS) for first in range(0, num_rows, ROWS)]
    entries = [(f"model.layers.{i}.mlp.up_proj.weight", "BF16", shape) for i, shape in enumerate(shapes)]
    header, _ = format_header([(name, dtype, tuple(shape)) for name, dtype, shape in entries], {"format": "pt"})
    block = BF16.encode(np.random.default_rng(0).standard_normal(BLOCK, np.float32) * np.float32(SIGMA))
    total = num_rows * COLUMNS
    with (folder / "model.safetensors").open("xb") as file:
        file.write(header)
        for begin in range(0, total, BLOCK):
            file.write(block[: total - begin].tobytes())
            progress("write random weights", min(begin + BLOCK, total) * 2, total * 2)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1, "torch_dtype": "bfloat16"}))
