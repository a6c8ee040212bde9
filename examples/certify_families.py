"""Tiny random checkpoints of every family, drafted for by their own 4 bits and what else they have: bit by bit.

    python examples/certify_families.py                        # 20 prompts, 32 tokens each
    python examples/certify_families.py "qwen3_moe" "lfm2"     # some of the names in tests/family_checkpoints.py

Both codecs; greedy in chains and drawn in trees of 8 nodes. Where there are experts `fewer-experts:1` drafts too, alone
and below the 4 bits; where there is an MTP module, of random numbers, `mtp`; for Gemma 4 two assistants, of random
numbers too. transformers makes the checkpoints.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import gemma4_assistants
import mtp_models
from checkpoints import write_tiny_tokenizer
from family_checkpoints import FAMILIES, make_model, write_checkpoint

from mxconv.arch.elements import Mixture
from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling
from mxconv.text.messages import read_prompts, text_of
from mxconv.verification.decode_proof import verify_decoding

NUM_PROMPTS, NUM_TOKENS, MOST_CHARACTERS = 20, 32, 24
MODULES = {
    "deepseek_v3": ("model.layers.4.", mtp_models.NEXTN),
    "glm4_moe": ("model.layers.4.", mtp_models.NEXTN),
    "qwen3_5": ("mtp.", mtp_models.BESIDE),
    "qwen3_next": ("mtp.", mtp_models.BESIDE),
}
MODES = (("greedy", "chain", Selection()), ("drawn", 8, Selection(Sampling(temperature=0.8), seed=7)))

prompts = [
    text_of(each)[:MOST_CHARACTERS] for each in read_prompts(Path(__file__).parent / "prompts.jsonl")[:NUM_PROMPTS]
]
num_runs = num_tokens = 0
for name in sys.argv[1:] or FAMILIES:
    with tempfile.TemporaryDirectory() as text:
        folder, model = Path(text), make_model(name)
        module = MODULES.get(name)
        write_checkpoint(model, folder / "source", *([mtp_models.MtpOracle(model).tensors(*module)] if module else []))
        write_tiny_tokenizer(folder / "source" / "tokenizer.json", 96)
        layers = describe_file(folder / "source" / "config.json").layers
        hierarchies = [["own"]]
        if any(isinstance(layer.mlp, Mixture) for layer in layers):
            hierarchies += [["fewer-experts:1"], ["own", "fewer-experts:1"]]
        if module:
            hierarchies += [["mtp"]]
        if name == "gemma4":
            for kind, changes in (("assistant", {}), ("clusters", gemma4_assistants.CLUSTERS)):
                gemma4_assistants.write_assistant(folder / kind, gemma4_assistants.make_assistant(**changes))
                hierarchies += [[*above, f"gemma4-assistant:{folder / kind}"] for above in ([], ["own"])]
        for codec in ("bsfp", "mxfp4"):
            with open_checkpoint(folder / "source") as source:
                convert(source, folder / codec, QuantizeOptions(codec=codec))
            for drafts in hierarchies:
                specs = [parse_draft(draft) for draft in drafts if draft != "own"]
                levels = ["target", codec] if "own" in drafts else ["target"]
                names = " <- ".join(draft.partition(":")[0] for draft in drafts)
                with LoadedPackage(folder / codec, levels, drafts=specs) as loaded:
                    for mode, tree, selection in MODES:
                        hierarchy = Hierarchy(loaded.levels, [4] * len(drafts), [0.0] * len(drafts), tree=tree)
                        record = verify_decoding(loaded, hierarchy, prompts, NUM_TOKENS, selection)
                        print(f"{name}: {codec} {mode}", names, record, flush=True)
                        if record.num_token_mismatches or record.num_logit_mismatches:
                            sys.exit("not the target's own")
                        num_runs, num_tokens = num_runs + 1, num_tokens + record.num_tokens
print(f"{num_runs} runs, {num_tokens} tokens: 0 and 0")
