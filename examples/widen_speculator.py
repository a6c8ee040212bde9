"""Fit an MLP speculator to a target whose every dimension was repeated: its proposals stay what they are.

    python examples/widen_speculator.py SPECULATOR OUT --factor 32

A model that is widened by repeating its dimensions FACTOR times says what the small one says, from states that are the
small one's, repeated. The speculator's first projection then reads each number FACTOR times at a FACTOR-th of its
weight, which is exact where FACTOR is a power of two. Its own states stay as they are.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

INPUT = "speculator.proj.0.weight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("speculator", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--factor", type=int, required=True)
    arguments = parser.parse_args()
    factor: int = arguments.factor
    if factor < 1 or factor & (factor - 1):
        parser.error(f"--factor {factor}: a power of two is required, so that dividing by it is exact")
    config = json.loads((arguments.speculator / "config.json").read_text())
    tensors = load_file(arguments.speculator / "model.safetensors")
    tensors[INPUT] = (tensors[INPUT] / factor).repeat(1, factor).contiguous()
    arguments.output.mkdir(parents=True)
    save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})
    config["inner_dim"] = config["inner_dim"] or config["emb_dim"]
    config["emb_dim"] *= factor
    (arguments.output / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(f"{arguments.output}: {sum(np.prod(t.shape) for t in tensors.values()):,} parameters")


if __name__ == "__main__":
    main()
