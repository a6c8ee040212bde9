"""Which 4-bit draft suits a model? Bits, perplexity and greedy agreement of each, below the 16-bit model.

    python examples/compare_codecs.py MODEL_FOLDER PROMPTS.jsonl [KEY]

All read the first 256 tokens of the same 20 texts. Agreement counts the positions where draft and 16-bit model would
continue with the same token. Drafts multiply float32 activations, so that formats alone are compared. The last five are
cut out of the 16-bit weights, as in SPEQ's Table I (mxconv/codecs/bsfp/cut.py); no package stores them.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from mxconv.checkpoint.package import StoredBsfp
from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.codecs.bsfp.cut import CUTS, Cut, cut_draft
from mxconv.codecs.bsfp.packing import COLUMN_MULTIPLE
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.model.cache import KVCache
from mxconv.model.decoder import Decoder
from mxconv.model.loader import LoadedPackage
from mxconv.model.stored_weights import EMBEDDING, HEAD, dense_weights
from mxconv.model.weights import Weights

CODECS = {
    "mxfp4": QuantizeOptions(),
    "bsfp fitted": QuantizeOptions(codec="bsfp"),
    "bsfp paper": QuantizeOptions(codec="bsfp", segments="paper"),
}


def decoders(checkpoint: Checkpoint, folder: Path) -> Iterator[tuple[str, float | None, Decoder, LoadedPackage]]:
    """Names, stored bits a weight and decoders, the 16-bit model first."""
    for name, options in CODECS.items():
        bits = convert(checkpoint, folder / name, options).bits_per_weight
        with LoadedPackage(folder / name, activations="fp32") as loaded:
            target, draft = (level.decoder for level in loaded.levels)
            if name == "mxfp4":
                yield "16-bit", 16.0, target, loaded
            yield name, bits, draft, loaded
            if name == "bsfp paper":
                for cut_name, cut in CUTS.items():
                    yield cut_name, None, cut_decoder(checkpoint, loaded, cut), loaded


def cut_decoder(checkpoint: Checkpoint, loaded: LoadedPackage, cut: Cut) -> Decoder:
    """The model with a cut in place of every matrix that the package quantizes."""
    weights = dense_weights(checkpoint.tensors, loaded.config, loaded.matrices)
    matrices = dict(weights.matrices)
    for record in loaded.package.manifest.tensors:
        if record.codec == "bsfp":
            stored = with_cut(loaded.package.bsfp(record), cut)
            matrices[HEAD if record.name == EMBEDDING else record.name] = loaded.matrices.bsfp_draft(stored)
    return loaded.matrices.decoder(loaded.config, Weights(matrices, weights.vectors), "cut")


def with_cut(stored: StoredBsfp, cut: Cut) -> StoredBsfp:
    """A stored matrix with the nibbles, levels and scales of a cut: good for the draft alone."""
    patterns = stored.target_rows(0, stored.shape[0])
    nibbles, scales = cut_draft(patterns, stored.table.float_format, cut)
    codes = pack_nibbles(pad(nibbles, TILE_ROWS, COLUMN_MULTIPLE))
    packed = replace(stored.packed, codes=codes, scales=pack_scales(pad(scales, TILE_ROWS, 1)))
    return replace(stored, packed=packed, table=replace(stored.table, levels=cut.levels))


def main(model: str, prompts: str, key: str = "text") -> None:
    texts = [json.loads(line)[key] for line in Path(prompts).read_text().splitlines()[:20]]
    of_target: list[int] = []
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(model) as checkpoint:
        for name, bits, decoder, loaded in decoders(checkpoint, Path(folder)):
            losses, choices = [], []
            for text in texts:
                ids = loaded.tokenizer.encode(text)[:256]
                logits = decoder.forward(ids, KVCache(decoder.config)).astype(np.float64)
                choices.extend(logits.argmax(axis=-1))
                losses.extend(np.logaddexp.reduce(logits[:-1], axis=-1) - logits[np.arange(len(ids) - 1), ids[1:]])
            of_target = of_target or choices
            perplexity, agreement = np.exp(np.mean(losses)), np.equal(choices, of_target).mean()
            shown = "-" if bits is None else f"{bits:.2f}"
            print(f"{name:12} {shown:>6} bits  perplexity {perplexity:10.4g}  agreement {agreement:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
