"""Every strategy over a prompt file: is the text the target's own, and how often does each level guess right?

python examples/acceptance.py MODEL_FOLDER PROMPTS.jsonl [DRAFT_FOLDER] [NUM_PROMPTS]
"""

import sys
import tempfile
from itertools import zip_longest
from pathlib import Path

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts
from mxconv.text.chat import encode_prompts

MAX_NEW_TOKENS = 64
CONFIDENCE = [0.4]  # the same for all, so that rates compare


def main(model: str, prompts: str, draft: str = "", num_prompts: str = "100") -> None:
    texts = read_prompts(Path(prompts))[: int(num_prompts)]
    print(f"{'levels':36} tokens  differ  a round  acceptance by level")
    for codec in ("mxfp4", "bsfp"):
        with tempfile.TemporaryDirectory() as folder, open_checkpoint(model) as checkpoint:
            drafts = (f"checkpoint:{draft}",) if draft else ()
            convert(checkpoint, Path(folder, "package"), QuantizeOptions(codec=codec, drafts=drafts))
            with LoadedPackage(Path(folder, "package")) as loaded:
                target, own, *small = loaded.levels
                plain: list[list[int]] = []
                for levels in ([target], [target, own], [target, *small], [target, own, *small])[: 4 if small else 2]:
                    hierarchy = Hierarchy(levels, confidence=CONFIDENCE if levels[1:] else None)
                    ids = encode_prompts(loaded.tokenizer, loaded.folder, texts)
                    runs = [hierarchy.generate(i, MAX_NEW_TOKENS, loaded.tokenizer.eos_token_ids) for i in ids]
                    outputs = [run.token_ids for run in runs]
                    plain = plain or outputs
                    differ = sum(a != b for pair in zip(outputs, plain, strict=True) for a, b in zip_longest(*pair))
                    num_tokens, num_rounds = sum(map(len, outputs)), sum(run.trace.num_rounds for run in runs)
                    rates = []
                    for index, level in enumerate(levels[1:], 1):
                        counts = [run.trace.statistics[index] for run in runs]
                        rate = sum(c.num_accepted for c in counts) / max(sum(c.num_proposed for c in counts), 1)
                        rates.append(f"{level.name} {rate:.3f}")
                    name = f"{codec}: " + " <- ".join(level.name for level in levels)
                    print(f"{name:36} {num_tokens:6} {differ:6}  {num_tokens / num_rounds:7.2f}  {', '.join(rates)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
