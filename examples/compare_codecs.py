"""Which 4-bit draft suits a model? Bits, perplexity and greedy agreement of each, below the 16-bit model.

    python examples/compare_codecs.py MODEL_FOLDER PROMPTS.jsonl [KEY]
    python examples/compare_codecs.py MODEL_FOLDER QUESTIONS.jsonl --answers 128 [--calibrate OTHER_QUESTIONS.jsonl]

With --answers, the 16-bit model answers 20 of the questions in its chat template, with so many tokens at most, and
every draft that a package may hold (codec, scale rule, output head) reads the answers on the kernels that decode: for
how many tokens does it choose the same one? Beside it stand the bits a weight and the bytes that a pass of the draft
reads, and the median milliseconds of its passes of one token.

Without it, all read the first 256 tokens of the same 20 texts. Agreement counts the positions where draft and 16-bit
model would continue with the same token. Drafts multiply float32 activations, and heads are in 4 bits too, so that
formats alone are compared.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from mxconv.bench.decode_speed import prompt_ids
from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_bytes import package_bytes
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts

CODECS = {
    "mxfp4": QuantizeOptions(lm_head="quantize"),  # the formats in every matrix
    "bsfp fitted": QuantizeOptions(codec="bsfp", lm_head="quantize"),
    "bsfp paper": QuantizeOptions(codec="bsfp", segments="paper", lm_head="quantize"),
}
DRAFTS = {
    "mxfp4 ocp, head int8": QuantizeOptions(),
    "mxfp4 mse, head int8": QuantizeOptions(scale_rule="mse"),
    "mxfp4 ocp, head 16 bits": QuantizeOptions(lm_head="keep"),
    "mxfp4 mse, head 16 bits": QuantizeOptions(scale_rule="mse", lm_head="keep"),
    "mxfp4 ocp, head 4 bits": QuantizeOptions(lm_head="quantize"),
    "mxfp4 mse, head 4 bits": QuantizeOptions(scale_rule="mse", lm_head="quantize"),
    "bsfp, head exact": QuantizeOptions(codec="bsfp", lm_head="exact"),
    "bsfp, head 4 bits": QuantizeOptions(codec="bsfp"),
}
NUM_TEXTS = 20


def decoders(checkpoint: Checkpoint, folder: Path) -> Iterator[tuple[str, float, Decoder, LoadedPackage]]:
    """Names, stored bits a weight and decoders, the 16-bit model first."""
    for name, options in CODECS.items():
        bits = convert(checkpoint, folder / name, options).bits_per_weight
        with LoadedPackage(folder / name, activations="fp32") as loaded:
            target, draft = (level.decoder for level in loaded.levels)
            if name == "mxfp4":
                yield "16-bit", 16.0, target, loaded
            yield name, bits, draft, loaded


def compare_drafts(checkpoint: Checkpoint, folder: Path, questions: Path, num_tokens: int) -> None:
    """Print a line for every draft."""
    texts: list[tuple[list[int], list[int]]] = []
    num_weights = 0.0
    for name, options in DRAFTS.items():
        convert(checkpoint, folder / "package", replace(options, force=True))
        with LoadedPackage(folder / "package") as loaded:
            draft = loaded.levels[1].decoder
            assert draft is not None
            if not texts:
                num_weights = package_bytes(loaded.package, is_draft=False) / 2
                found = read_prompts(questions, chat=True)
                spread = found[:: max(len(found) // NUM_TEXTS, 1)][:NUM_TEXTS]  # of every kind of question some
                prompts = prompt_ids(loaded.tokenizer, loaded.folder, spread)
                target = Hierarchy(loaded.levels[:1])
                texts = [(ids, target.generate(ids, num_tokens).token_ids) for ids in prompts]
            same, seconds = [], []
            for ids, answer in texts:
                cache = KVCache(draft.config)
                logits = draft.forward(ids + answer[:-1], cache)[len(ids) - 1 :]
                same.extend(logits.argmax(axis=-1) == answer)
                begin = time.perf_counter()
                draft.forward(answer[-1:], cache)
                seconds.append(time.perf_counter() - begin)
            num_bytes = package_bytes(loaded.package, is_draft=True)
        print(
            f"{name:26} {8 * num_bytes / num_weights:6.2f} bits {num_bytes / 1e6:8.1f} MB  pass "
            f"{1e3 * float(np.median(seconds)):6.1f} ms  agreement {np.mean(same):.3f} of {len(same)} tokens",
            flush=True,
        )


def compare_formats(checkpoint: Checkpoint, folder: Path, prompts: Path, key: str) -> None:
    """Print a line for every format."""
    texts = [json.loads(line)[key] for line in prompts.read_text().splitlines()[:NUM_TEXTS]]
    of_target: list[int] = []
    for name, bits, decoder, loaded in decoders(checkpoint, folder):
        losses, choices = [], []
        for text in texts:
            ids = loaded.tokenizer.encode(text)[:256]
            logits = decoder.forward(ids, KVCache(decoder.config)).astype(np.float64)
            choices.extend(logits.argmax(axis=-1))
            losses.extend(np.logaddexp.reduce(logits[:-1], axis=-1) - logits[np.arange(len(ids) - 1), ids[1:]])
        of_target = of_target or choices
        perplexity, agreement = np.exp(np.mean(losses)), np.equal(choices, of_target).mean()
        print(f"{name:12} {bits:6.2f} bits  perplexity {perplexity:10.4g}  agreement {agreement:.4f}")


def main(
    model: Path,
    prompts: Path,
    key: Annotated[str, typer.Argument()] = "text",
    answers: Annotated[int | None, typer.Option(metavar="TOKENS", help="compare on the model's own answers")] = None,
    calibrate: Annotated[
        list[str] | None, typer.Option(help="with --answers: texts for two more drafts, calibrated")
    ] = None,
) -> None:
    if calibrate:
        DRAFTS["mxfp4 mse, calibrated"] = QuantizeOptions(scale_rule="mse", calibrate=tuple(calibrate))
        DRAFTS["bsfp, calibrated"] = QuantizeOptions(codec="bsfp", calibrate=tuple(calibrate))
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(str(model)) as checkpoint:
        if answers is None:
            compare_formats(checkpoint, Path(folder), prompts, key)
        else:
            compare_drafts(checkpoint, Path(folder), prompts, answers)


if __name__ == "__main__":
    typer.run(main)
