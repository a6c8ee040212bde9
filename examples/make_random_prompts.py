"""Prompts of random tokens, on which no draft can know what comes: the hard case for adaptive speculation.

python examples/make_random_prompts.py MODEL_FOLDER OUTPUT.jsonl [NUM_PROMPTS]
"""

import json
import sys
from pathlib import Path

import numpy as np

from mxconv.text.tokenizer import Tokenizer

tokenizer = Tokenizer.from_folder(Path(sys.argv[1]))
num_prompts = int(sys.argv[3]) if len(sys.argv) > 3 else 50
generator = np.random.default_rng(0)
with Path(sys.argv[2]).open("x", encoding="utf-8") as file:
    for _ in range(num_prompts):
        text = tokenizer.decode(generator.integers(0, tokenizer.vocab_size, 64).tolist())
        file.write(json.dumps({"prompt": text}) + "\n")
