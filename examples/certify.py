"""Every kind of draft and mixed hierarchies against plain decoding, greedy and sampled: tokens and logits, bit by bit.

    python examples/certify.py CHECKPOINT SAME_TOKENIZER OTHER_TOKENIZER PROMPTS.jsonl [NUM_PROMPTS [NUM_TOKENS]]

CHECKPOINT is converted to both codecs; the other two are small models that draft for it. Look-ups are there as chains
and as trees of 16 nodes. What says auto chooses lengths, levels and trees by measured times, so that no two runs of it
draft alike. The target is the 16-bit model, and in the last hierarchies its 4-bit copy: a record names which.
"""

import sys
import tempfile
from pathlib import Path
from typing import Literal

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.package.ngram_table import write_ngram_table
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.train.ngram_trainer import train_ngram
from mxconv.verification.decode_proof import verify_decoding

checkpoint, same, other, prompt_file = map(Path, sys.argv[1:5])
prompts = read_prompts(prompt_file)[: int(sys.argv[5]) if len(sys.argv) > 5 else None]
num_tokens = int(sys.argv[6]) if len(sys.argv) > 6 else 64
folder = Path(tempfile.mkdtemp())
table, small, foreign = f"ngram:{folder}/table", f"checkpoint:{same}", f"checkpoint:{other}"
write_ngram_table(train_ngram([prompt_file], checkpoint), folder / "table")
own, skip, stream = ["own"], "layer-skip:a2+m3", "streaming:sink=4,window=28"
LOOK_UPS = [["prompt-lookup"], [table], ["token-recycling"], ["stand"]]
ALONE = [own, [small], [foreign], *LOOK_UPS, [skip], [stream], ["swift"], ["early-exit"]]
MIXED = [
    [*own, small],
    [*own, foreign],
    [skip, small, "token-recycling"],
    [*own, small, table],
    [*own, stream, foreign, "prompt-lookup"],
]
TREES = [["prompt-lookup"], [table], ["token-recycling"], [*own, small, "token-recycling"], ["stand", "prompt-lookup"]]
AUTO = [[*own, small, table], [*own, "token-recycling"]]
OF_OWN = [[small], ["token-recycling"], [skip, stream], [small, "prompt-lookup"]]
Lengths, Trees = Literal["auto"] | None, int | Literal["auto", "chain"]
HIERARCHIES: list[tuple[str, list[str], Lengths, Trees]] = []
HIERARCHIES += [("target", drafts, None, "chain") for drafts in (*ALONE, *MIXED)]
HIERARCHIES += [("target", drafts, None, 16) for drafts in TREES]
HIERARCHIES += [("target", drafts, "auto", "auto") for drafts in AUTO]
HIERARCHIES += [("own", drafts, None, "chain") for drafts in OF_OWN]
HIERARCHIES += [("own", ["token-recycling"], None, 16), ("own", [small, "token-recycling"], "auto", "auto")]
for codec in ("bsfp", "mxfp4"):
    with open_checkpoint(checkpoint) as source:
        convert(source, folder / codec, QuantizeOptions(codec=codec))
    for target, drafts, lengths, tree in HIERARCHIES:
        specs = [parse_draft(text) for text in drafts if text != "own"]
        levels = [codec if level == "own" else level for level in (target, *drafts) if level in ("target", "own")]
        with LoadedPackage(folder / codec, levels, drafts=specs) as loaded:
            for selection in (GREEDY, Selection(Sampling(temperature=0.8, top_p=0.95), seed=1)):
                record = verify_decoding(
                    loaded, Hierarchy(loaded.levels, lengths, tree=tree), prompts, num_tokens, selection
                )
                mode = f"{'greedy' if selection is GREEDY else 'coupled'}, {lengths or 'fixed lengths'}, {tree}"
                print(f"{codec} {mode}", " <- ".join(level.name for level in loaded.levels), record, flush=True)
