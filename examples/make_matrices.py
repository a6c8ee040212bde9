"""Random matrices in one checkpoint file, to compare drafts on known distributions.

python examples/make_matrices.py matrices.safetensors [bf16|fp16] [SIZE]
mxconv inspect matrices.safetensors --per tensor
"""

import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


def main(path: str, dtype: str = "bf16", size: int = 4096) -> None:
    rng = np.random.default_rng(0)
    shape = (int(size), int(size))
    gaussian = {
        f"gaussian-{sigma}.weight": rng.standard_normal(shape, np.float32) * np.float32(sigma)
        for sigma in (0.003, 0.01, 0.02, 0.1, 0.3)
    }
    octaves = rng.uniform(-5, 5, (shape[0], 1)).astype(np.float32)
    others = {
        "gaussian-rows-differ-2^10.weight": rng.standard_normal(shape, np.float32) * np.exp2(octaves - 6),
        "student-t5-0.02.weight": (rng.standard_t(5, shape) * 0.02).astype(np.float32),
    }
    save_file({name: w.astype(DTYPES[dtype]) for name, w in (gaussian | others).items()}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
