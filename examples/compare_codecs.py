"""Which 4-bit draft suits a model? Bits, perplexity, divergence and agreement of each beside the 16-bit model.

    python examples/compare_codecs.py MODEL_FOLDER TEXTS [--context 512]
    python examples/compare_codecs.py MODEL_FOLDER QUESTIONS.jsonl --answers 128 [--calibrate OTHER_QUESTIONS.jsonl]

TEXTS are cut into windows, as `mxconv evaluate --texts` does it; with --answers the 16-bit model answers the questions
in its chat template, with so many tokens at most each. Bits and bytes are what a pass of the draft reads.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.stored_bytes import package_bytes
from mxconv.package.package import Package
from mxconv.progress import silent
from mxconv.speculation.prompts import read_prompts
from mxconv.verification.evaluation import evaluate
from mxconv.verification.scored_texts import ScoredText, answers, windows

DRAFTS = {
    f"mxfp4 {rule}, head {head}": QuantizeOptions(scale_rule=rule, lm_head=head)
    for rule in ("ocp", "even", "ceil", "ggml", "mse")
    for head in (("int8", "keep", "quantize") if rule in ("ocp", "mse") else ("int8",))
}
DRAFTS |= {
    f"bsfp {segments}, head {head}": QuantizeOptions(codec="bsfp", segments=segments, lm_head=head)
    for segments, head in (("fitted", "quantize"), ("fitted", "exact"), ("paper", "quantize"))
}


def main(
    model: Path,
    texts: Path,
    context: int = 512,
    tokens: int = 16_384,
    answer_tokens: Annotated[int | None, typer.Option("--answers", help="compare on the model's own answers")] = None,
    calibrate: Annotated[list[str] | None, typer.Option(help="texts for two more drafts, calibrated")] = None,
) -> None:
    if calibrate:
        DRAFTS["mxfp4 mse, calibrated"] = QuantizeOptions(scale_rule="mse", calibrate=tuple(calibrate))
        DRAFTS["bsfp, calibrated"] = QuantizeOptions(codec="bsfp", calibrate=tuple(calibrate))

    def read(loaded: LoadedPackage) -> list[ScoredText]:
        if answer_tokens is None:
            return windows(loaded, texts, context, tokens)
        return answers(loaded, read_prompts(texts, chat=True), answer_tokens, tokens, silent)

    num_weights = 0.0
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(str(model)) as checkpoint:
        for name, options in DRAFTS.items():
            package = Path(folder) / "package"
            convert(checkpoint, package, replace(options, force=True))
            target, draft = evaluate(package, read).levels
            with Package(package) as opened:
                num_bytes = package_bytes(opened, is_draft=True)
                num_weights = num_weights or package_bytes(opened, is_draft=False) / 2  # the first target has 16 bits
            print(
                f"{name:26} {8 * num_bytes / num_weights:6.2f} bits {num_bytes / 1e6:8.1f} MB  perplexity "
                f"{draft.perplexity:.4g} for {target.perplexity:.4g}  KL {draft.mean_kl:.5f}  "
                f"agreement {draft.agreement:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
