"""SPEQ's Table I and Fig. 9 in kind: which 4-bit float to share, and draft length against threshold.

    python examples/papers/speq.py table-1 MODEL TEXTS
    python examples/papers/speq.py figure-9 PACKAGE PROMPTS.jsonl [--lengths 4,8,16 --thresholds 0,0.6]

Table I: perplexities over the first 256 tokens of 20 texts, all matrices in 4 bits, by float32 activations. A cut is
the sign and three further bits of an FP16 weight, which stays below 2, so that its top exponent bit is 0; it stands for
the number that they leave when all others are 0. The paper gives the bits of E3M0 (Figure 3) and none for the others:
each field is taken from its top, as E3M0's is. No package stores a cut.

    bit     15  14   13  12  11  10   9   8   7 ... 0
             s   0   e3  e2  e1  e0  m9  m8  m7 ... m0
    E3M0     s       e3  e2  e1                           two octaves share a level
    E2M1     s       e3  e2          m9                   four
    E1M2     s       e3              m9  m8               eight

Figure 9: PACKAGE's own draft, greedy, stops at a length or after a token of which it was less sure than the threshold.
Speed-up is Eq. (2) with what was counted, at the Td/Tar that the paper's Table III implies; nothing is timed.

Source: SPEQ (arXiv 2510.18525), sections III-B, III-C and V-E.
"""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import typer

import mxconv
from mxconv.arrays import U8, U16
from mxconv.bench.decode_speed import summed
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.bsfp.draft import group_values, scales_of
from mxconv.codecs.bsfp.packing import COLUMN_MULTIPLE
from mxconv.codecs.bsfp.speq import BF16_OFFSET, rescale, rescale_factor
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, SIGN_MASK
from mxconv.codecs.fold import fold
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import OwnWeights
from mxconv.kernels.matrix import Matrix
from mxconv.package.stored import StoredBsfp
from mxconv.text.messages import read_prompts
from mxconv.text.texts import read_pieces
from mxconv.verification.evaluation import measure
from mxconv.verification.scored_texts import ScoredText

FORMATS = {
    "MXFP4": QuantizeOptions(lm_head="quantize"),
    "fitted": QuantizeOptions(codec="bsfp", lm_head="quantize"),
    "remap": QuantizeOptions(codec="bsfp", segments="paper", lm_head="quantize"),
}
CUTS = {"E3M0": (13, 12, 11), "E2M1": (13, 12, 9), "E1M2": (13, 9, 8)}  # positions of the bits, the highest first
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class CutMatrices(Matrices):
    """Makes drafts of a cut in place of BSFP's."""

    bits: tuple[int, int, int] = CUTS["E3M0"]

    def bsfp_draft(self, stored: StoredBsfp) -> Matrix:
        return super().bsfp_draft(cut(stored, self.bits))


def nibbles_of(patterns: U16, bits: tuple[int, int, int]) -> U8:
    """The sign and three bits of FP16 patterns."""
    return sum((patterns >> bit & 1) << 3 - place for place, bit in enumerate((15, *bits))).astype(np.uint8)


def levels_of(bits: tuple[int, int, int]) -> tuple[float, ...]:
    """The magnitudes of the eight codes; an exponent of 0 has the one of all others (Eq. 3)."""
    kept = [sum((code >> 2 - place & 1) << bit for place, bit in enumerate(bits)) for code in range(8)]
    return tuple(2.0 ** (pattern // 1024 - 15) * (1 + pattern % 1024 / 1024) for pattern in kept)


def cut(stored: StoredBsfp, bits: tuple[int, int, int]) -> StoredBsfp:
    """A matrix with the nibbles, levels and least-squares scales (Eq. 4) of a cut: good for the draft alone."""
    float_format, weights = stored.table.float_format, stored.target_rows(0, stored.shape[0])
    patterns = weights
    if float_format == BF16:  # in FP16's bits: exponents below 112 become 112, zeros follow the mantissa (section IV-A)
        octave = BF16.patterns_per_octave
        lowered = (weights & MAGNITUDE_MASK).astype(np.int32) - BF16_OFFSET * octave
        magnitudes = np.minimum(np.maximum(lowered, weights & (octave - 1)) << 3, MAGNITUDE_MASK)
        patterns = magnitudes.astype(np.uint16) | (weights & SIGN_MASK)
    largest = float(np.abs(FP16.decode(patterns)).max())
    nibbles = nibbles_of(rescale(patterns, rescale_factor(largest), FP16), bits)
    table = replace(stored.table, levels=levels_of(bits))
    exact, drafted = group_values(float_format.decode(weights)), group_values(table.signed_levels[nibbles])
    scales = pack_scales(pad(scales_of(fold(exact * drafted), fold(drafted * drafted)), TILE_ROWS, 1))
    codes = pack_nibbles(pad(nibbles, TILE_ROWS, COLUMN_MULTIPLE))
    return replace(stored, packed=replace(stored.packed, codes=codes, scales=scales), table=table)


@app.command()
def table_1(model: Path, texts: Path) -> None:
    """Perplexities of 4-bit formats."""
    decoders = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with open_checkpoint(str(model)) as checkpoint:
            for name, options in FORMATS.items():
                convert(checkpoint, Path(folder) / name, options)
                loaded = stack.enter_context(LoadedPackage(Path(folder) / name, activations="fp32"))
                decoders |= {"16-bit": loaded.target, name: loaded.levels[1].decoder}
        for name, bits in CUTS.items():  # over the last package
            make = CutMatrices(loaded.matrices.engine, "fp32", bits=bits)
            weights = OwnWeights(loaded.package, make, stack).four_bits("bsfp", with_target=True)
            decoders[name] = make.decoder(loaded.config, weights, name)
        pieces = [piece.text for piece in read_pieces(texts, lambda _: None)][:20]
        scored = [ScoredText(loaded.tokenizer.encode(text)[:256], 1) for text in pieces]
        found = measure(loaded.target, decoders, scored)
    print(json.dumps({level.name: level.perplexity for level in found}))


@app.command()
def figure_9(
    package: Path,
    prompts: Path,
    lengths: str = "4,8,16",
    thresholds: str = "0,0.4,0.6,0.8",
    ratio: float = 0.357,
    chat: bool = False,
) -> None:
    """Speed-ups over draft length and threshold, 64 tokens a prompt."""
    rows, given = [], read_prompts(prompts, chat)
    print("| L | threshold | drafted a round | tokens a round | speed-up by Eq. (2) |\n|---|---|---|---|---|")
    with mxconv.load(package) as model:
        common: dict[str, Any] = {"max_new_tokens": 64, "temperature": 0.0, "tree": "chain"}
        plain = [model.generate(prompt, drafts=[], **common).token_ids for prompt in given]
        common["drafts"] = [model.loaded.levels[1].name]
        for length, threshold in product(map(int, lengths.split(",")), map(float, thresholds.split(","))):
            options = common | {"num_draft_tokens": [length], "confidence": [threshold]}
            texts = [model.generate(prompt, **options).generation for prompt in given]
            assert [text.token_ids for text in texts] == plain, "a text differs from plain decoding's"
            draft = summed([text.trace.statistics for text in texts])[1]
            drafted, accepted = (n / draft.proposed_by_position[0] for n in (draft.num_proposed, draft.num_accepted))
            rows.append([length, threshold, drafted, accepted + 1, (accepted + 1) / (1 + ratio * drafted)])
            print("| {} | {:g} | {:.2f} | {:.2f} | {:.2f} |".format(*rows[-1]), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    app()
