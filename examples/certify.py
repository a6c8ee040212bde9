"""Every kind of draft and mixed hierarchies against plain decoding, greedy and sampled: tokens and logits, bit by bit.

    python examples/certify.py CHECKPOINT SAME_TOKENIZER OTHER_TOKENIZER PROMPTS [NUM_PROMPTS [NUM_TOKENS [BATCH]]]

CHECKPOINT, a Llama, is converted to both codecs; the other two are small models that draft for it. Drafts
that read its states are made here, of its own parts or in a few steps of training (extra train): poor ones, some
of whose tokens are accepted. What says auto chooses lengths, levels and trees by measured times, so that no two runs of
it draft alike. The target is the 16-bit model, or its 4-bit copy: a record names which. All prompts together are one
more, long enough for pages to be retrieved. With BATCH so many texts are decoded beside each other.

Under the rules rejection and block a text is another one, drawn from the target's distribution: there the logits that
chose its tokens are those of the target over that text. MTP modules, experts and Gemma 4's assistants are certified by
certify_families.py.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mxconv.arrays import F32
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.package.ngram_table import write_ngram_table
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Accept, Selection
from mxconv.text.distribution import Sampling
from mxconv.text.messages import read_prompts, text_of
from mxconv.train.ngram_trainer import train_ngram
from mxconv.verification.decode_proof import verify_decoding

checkpoint, same, other, prompt_file = map(Path, sys.argv[1:5])
prompts = read_prompts(prompt_file)[: int(sys.argv[5]) if len(sys.argv) > 5 else None]
num_tokens = int(sys.argv[6]) if len(sys.argv) > 6 else 64
batch = int(sys.argv[7]) if len(sys.argv) > 7 else None
prompts.append("\n".join(map(text_of, read_prompts(prompt_file)))[:900])
folder = Path(tempfile.mkdtemp())
config, tensors = json.loads((checkpoint / "config.json").read_text()), load_file(checkpoint / "model.safetensors")
size, vocab_size, last = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"] - 1
output = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
NUM_HEADS = 3
Made = tuple[dict[str, Any], dict[str, Tensor]]  # config.json, and tensors


def random(*shape: int) -> Tensor:
    return torch.randn(shape) / shape[-1] ** 0.5


def dflash() -> Made:
    """The target's last layer, which reads as memory the states that it reads there."""
    head_dim, begin = config.get("head_dim") or size // config["num_attention_heads"], f"model.layers.{last}."
    layer = config | {"model_type": "qwen3", "num_hidden_layers": 1, "head_dim": head_dim}
    values = {"speculators_model_type": "dflash", "transformer_layer_config": layer, "draft_vocab_size": vocab_size}
    values |= {"aux_hidden_state_layer_ids": [last], "block_size": 5, "mask_token_id": 1}
    made = {name.replace(begin, "layers.0."): part for name, part in tensors.items() if name.startswith(begin)}
    made |= {"fc.weight": torch.eye(size), "hidden_norm.weight": made["layers.0.input_layernorm.weight"]}
    made |= {f"layers.0.self_attn.{part}_norm.weight": torch.full((head_dim,), 2.0) for part in "qk"}
    made["norm.weight"] = tensors["model.norm.weight"]
    return values, made


def medusa() -> Made:
    """Heads that change the state a little before the target's output matrix."""
    made: dict[str, Tensor] = {}
    for head in range(NUM_HEADS):
        made |= {f"{head}.0.linear.weight": random(size, size), f"{head}.0.linear.bias": torch.zeros(size)}
        made[f"{head}.1.weight"] = output
    return {"medusa_num_heads": NUM_HEADS}, made


def load(codec: str, target: str, drafts: list[str]) -> LoadedPackage:
    specs = [parse_draft(text) for text in drafts if text != "own"]
    levels = [codec if level == "own" else level for level in (target, *drafts) if level in ("target", "own")]
    return LoadedPackage(folder / codec, levels, drafts=specs)


def drawn(loaded: LoadedPackage, hierarchy: Hierarchy, selection: Selection) -> tuple[int, int]:
    """Tokens of all prompts, and how many were chosen by other logits than the target's over that text."""
    num_drawn = num_wrong = 0
    for prompt in map(text_of, prompts):
        ids, found = loaded.tokenizer.encode(prompt), list[F32]()
        made = hierarchy.generate(ids, num_tokens, (), lambda _, logits, kept=found: kept.append(logits), selection)
        rows = loaded.target.forward([*ids, *made.token_ids[:-1]], loaded.target.new_cache())[len(ids) - 1 :]
        num_wrong += sum(mine.tobytes() != row.tobytes() for mine, row in zip(found, rows, strict=True))
        num_drawn += len(found)
    return num_drawn, num_wrong


write_ngram_table(train_ngram([prompt_file], checkpoint), folder / "table")
for codec in ("bsfp", "mxfp4"):
    with open_checkpoint(checkpoint) as source:
        convert(source, folder / codec, QuantizeOptions(codec=codec))
for kind in ("speculator", "spire", "eagle3"):
    options = ["--length", 32, "--batch-tokens", 256, "--steps", 30, "--learning-rate", 3e-3]
    words = ["train", kind, prompt_file, "--target", checkpoint, "-o", folder / kind, *options]
    command = [sys.executable, "-m", "mxconv.cli.main", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
heads = {"medusa": medusa(), "dflash": dflash()}
for name, (values, made) in heads.items():
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(values))
    halves = {key: part.to(output.dtype) if part.is_floating_point() else part for key, part in made.items()}
    save_file({key: part.clone() for key, part in halves.items()}, folder / name / "model.safetensors")
table, small, foreign = f"ngram:{folder}/table", f"checkpoint:{same}", f"checkpoint:{other}"
own, stream = ["own"], "streaming:sink=4,window=28"
pages = "retrieval,pages=1,window=64"
readers = [f"{kind}:{folder}/{kind},confidence=0" for kind in ("speculator", "spire", "eagle3", *heads)]
papers = Path(__file__).parent / "papers"
recycling, stand = f"{papers}/token_recycling.py:TokenRecyclingKind", f"{papers}/stand.py:StandKind"
merged = f"{papers}/rasd.py:MergedKind"
swift, exits = f"{papers}/swift.py:SwiftKind", f"{papers}/swift.py:EarlyExitKind"
LOOK_UPS = [["prompt-lookup"], [table], [recycling], [stand], [merged]]
ALONE = [own, [small], [foreign], *LOOK_UPS, [stream], [swift], [exits], *([each] for each in readers)]
ALONE += [[pages], [f"{pages},bits=16"], [f"{stream},bits=4"]]
MIXED = [[*own, small], [*own, foreign], [stream, small, recycling], [*own, small, table]]
MIXED += [[*own, stream, foreign, "prompt-lookup"], [*own, pages]]
TREES = [["prompt-lookup"], [table], [recycling], [*own, small, recycling], [merged]]
TREES += [[*own, pages], *([*own, reader] for reader in readers)]
AUTO = [[*own, small, table], [*own, recycling], [*own, pages], [*own, readers[-1]]]
OF_OWN = [[small], [recycling], [stream, pages], [small, "prompt-lookup"], *([reader] for reader in readers)]
DRAWN = [own, [*own, small, "prompt-lookup"], [pages], readers[:1], [*own, readers[-1]]]
Lengths, Trees = Literal["auto"] | None, int | Literal["auto", "chain"]
HIERARCHIES: list[tuple[str, list[str], Lengths, Trees]] = []
HIERARCHIES += [("target", drafts, None, "chain") for drafts in (*ALONE, *MIXED)]
HIERARCHIES += [("target", drafts, None, 16) for drafts in TREES]
HIERARCHIES += [("target", drafts, "auto", "auto") for drafts in AUTO]
HIERARCHIES += [("own", drafts, None, "chain") for drafts in OF_OWN]
HIERARCHIES += [("own", [recycling], None, 16), ("own", [small, recycling], "auto", "auto")]
RULES: list[tuple[Accept, Trees]] = [("rejection", "chain"), ("block", "chain"), ("block", 8)]
num_runs = num_all = num_different = 0
for codec in ("bsfp", "mxfp4"):
    for target, drafts, lengths, tree in HIERARCHIES:
        with load(codec, target, drafts) as loaded:
            hierarchy = Hierarchy(loaded.levels, lengths, tree=tree)
            for selection in (GREEDY, Selection(Sampling(temperature=0.7, top_p=0.95), seed=1)):
                record = verify_decoding(loaded, hierarchy, prompts, num_tokens, selection, batch=batch)
                mode = f"{'greedy' if selection is GREEDY else 'coupled'}, {lengths or 'fixed lengths'}, {tree}"
                print(f"{codec} {mode}", " <- ".join(level.name for level in loaded.levels), record, flush=True)
                num_runs, num_all = num_runs + 1, num_all + record.num_tokens
                num_different += record.num_token_mismatches + record.num_logit_mismatches
    for (accept, tree), drafts in ((rule, drafts) for rule in RULES for drafts in DRAWN):
        with load(codec, "target", drafts) as loaded:
            selection = Selection(Sampling(temperature=0.7), accept, seed=1)
            num_drawn, num_wrong = drawn(loaded, Hierarchy(loaded.levels, tree=tree), selection)
            names = " <- ".join(level.name for level in loaded.levels)
            print(f"{codec} {accept}, {tree}: {names}: {num_drawn} tokens, {num_wrong} logits differ", flush=True)
            num_runs, num_all, num_different = num_runs + 1, num_all + num_drawn, num_different + num_wrong
print(f"{num_runs} runs, {num_all} tokens, {num_different} tokens or logits differ")
sys.exit(bool(num_different))
