"""Does vLLM compute from a plain export what mxconv computes? Log-probabilities and greedy texts, side by side.

mxconv quantize MODEL -o package
mxconv export package --to safetensors -o target           # or --level draft -o draft
VLLM_CPU_KVCACHE_SPACE=1 python examples/vllm_logits.py package target examples/prompts.jsonl target

The last word is the level; one more is vLLM's dtype, float32 by default. mxconv computes in float32 with the NumPy
kernels. vLLM's CPU build takes heads of 32 and more. With tied embeddings a draft export is another model than the
package's draft, which keeps its embedding exact.
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vllm import LLM, RequestOutput, SamplingParams

from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.speculation.hierarchy import Hierarchy

NUM_NEW_TOKENS, MAX_LENGTH = 64, 512


def main(package: str, export: str, prompts: str, level: str, dtype: str = "float32") -> None:
    llm = LLM(export, dtype=dtype, enforce_eager=True, max_model_len=MAX_LENGTH, max_logprobs=-1)
    with LoadedPackage(Path(package), kernel="numpy", activations="fp32") as loaded:
        chosen = loaded.levels[("target", "draft").index(level)]
        num_equal, largest, texts = 0, 0.0, Path(prompts).read_text().splitlines()
        for text in texts:
            ids = loaded.tokenizer.encode(json.loads(text)["prompt"])[: MAX_LENGTH - NUM_NEW_TOKENS]
            ours = Hierarchy([chosen]).generate(ids, NUM_NEW_TOKENS, loaded.tokenizer.eos_token_ids).token_ids
            theirs = generate(llm, ids, max_tokens=NUM_NEW_TOKENS).outputs[0].token_ids
            whole = [*ids, *ours]
            rows = log_softmax(chosen.decoder.forward(whole, KVCache(chosen.decoder.config)))[:-1]
            found = generate(llm, whole[:-1], max_tokens=1, prompt_logprobs=-1, logprobs=-1)
            places = [*found.prompt_logprobs[1:], *found.outputs[0].logprobs]  # one dict a place: every token's
            difference = np.abs(rows - [[place[i].logprob for i in range(rows.shape[1])] for place in places]).max(-1)
            largest = max(largest, difference.max())
            if list(theirs) == ours:
                num_equal += 1
                continue
            at = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]) + len(ids) - 1
            second, best = np.sort(rows[at])[-2:]
            print(f"parts at token {at + 1 - len(ids)}: margin {best - second:.4f}, {difference[at]:.4f} apart there")
    print(f"{num_equal} of {len(texts)} texts equal, log-probabilities differ by up to {largest:.3g}")


def generate(llm: LLM, ids: list[int], **options: int) -> RequestOutput:
    sampling = SamplingParams(temperature=0.0, detokenize=False, **options)
    return llm.generate({"prompt_token_ids": ids}, sampling, use_tqdm=False)[0]


def log_softmax(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = rows.astype(np.float64) - rows.max(axis=-1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
