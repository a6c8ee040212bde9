"""Which 4-bit draft suits a model? Convert it three ways and compare bits, signal-to-noise and greedy agreement.

    python examples/compare_codecs.py MODEL_FOLDER PROMPTS.jsonl [KEY]

Agreement is teacher-forced: target and draft read the same texts, and we count the positions where both would
continue with the same token.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.model.cache import KVCache
from mxconv.model.loader import LoadedPackage

CODECS = {
    "mxfp4": QuantizeOptions(),
    "bsfp fitted": QuantizeOptions(codec="bsfp"),
    "bsfp paper": QuantizeOptions(codec="bsfp", segments="paper"),
}


def main(model: str, prompts: str, key: str = "text") -> None:
    texts = [json.loads(line)[key] for line in Path(prompts).read_text().splitlines()[:20]]
    for name, options in CODECS.items():
        with tempfile.TemporaryDirectory() as folder, open_checkpoint(model) as checkpoint:
            manifest = convert(checkpoint, Path(folder, "package"), options)
            with LoadedPackage(Path(folder, "package")) as loaded:
                target, draft = (level.decoder for level in loaded.levels)
                same = []
                for text in texts:
                    ids = loaded.tokenizer.encode(text)[:256]
                    choices = [d.forward(ids, KVCache(d.config)).argmax(axis=-1) for d in (target, draft)]
                    same.append(choices[0] == choices[1])
        print(f"{name:12} {manifest.bits_per_weight:6.2f} bits  agreement {np.concatenate(same).mean():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
