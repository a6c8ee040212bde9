"""Train the embedded model pair: a 1.5M parameter target and a 0.2M parameter draft that write Python.

What it makes
    examples/models/pylib-1.5m   the target: Llama, hidden 128, 6 layers, trained on next-token cross-entropy
    examples/models/pylib-0.2m   the draft: Llama, hidden 64, 3 layers, trained to predict what the target predicts
    Both in BF16 and in the Hugging Face folder layout, with one byte-level BPE tokenizer of 1,024 tokens.

From what
    The source of the standard library of the interpreter that runs this file (PSF licence). So there is nothing
    to download, and another Python version gives other weights.

How
    1. read the sources, hold out every 50th file      4. train the draft on the target's distributions (KL)
    2. train the tokenizer on the others               5. measure loss and agreement on the held-out files
    3. train the target on the text itself             both by the loop of `mxconv train draft`

A draft is worth the tokens on which it agrees with its target, not its own loss. That is why step 4 copies
distributions: a wrong guess that the target shares is a good guess.

Needs the extra train; about 40 minutes on 2 free CPU cores. The embedded weights are of an earlier loop, with the same
sizes, steps and learning rates.

    python examples/train_tiny_pair.py                     # writes examples/models, can be killed and run again
    python examples/train_tiny_pair.py --target-steps 20 --draft-steps 20 --out /tmp/pair --work /tmp/pair_work
"""

import json
import math
import random
import sysconfig
import tokenize
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
import typer
from accelerate import Accelerator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedTokenizerFast

from mxconv.arrays import I32
from mxconv.train.distillation import DistillationTask
from mxconv.train.training_loop import StepReport, fit
from mxconv.train.training_task import FrozenTarget, hard_target_loss
from mxconv.train.windows import TrainingStage, Windows

HERE = Path(__file__).parent
SEED = 2024
VOCAB_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"  # token 0: begins a text, ends it, and separates two files
MAX_POSITIONS = 512
CONTEXT = 256  # training window in tokens; RoPE is only trained up to here
BATCH = 32
HOLD_OUT_EVERY = 50  # files
CUT_EVERY = 300  # characters, see encode_with_cuts
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_POSITIONS, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TARGET_SIZES = {
    "hidden_size": 128, "intermediate_size": 448, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
DRAFT_SIZES = {
    "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip

# Test suites, whole applications, and tables written by programs: text, but not library code.
SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo",
    "encodings", "pydoc_data", "__pycache__",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- text


def read_library() -> tuple[list[str], list[str]]:
    """Read the standard library's sources: (training texts, held-out texts), each in path order."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = []
    for path in sorted(root.rglob("*.py")):
        folders = path.relative_to(root).parts[:-1]
        generated = path.name.startswith("_sysconfigdata") or any(f.startswith("config-") for f in folders)
        if generated or SKIPPED_FOLDERS.intersection(folders) or path.stat().st_size == 0:
            continue
        with tokenize.open(path) as file:  # honours the coding cookie of PEP 263
            texts.append(file.read())
    train = [text for i, text in enumerate(texts) if i % HOLD_OUT_EVERY]
    return train, texts[::HOLD_OUT_EVERY]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: any text encodes, decoding gives it back, and encoding begins with END_OF_TEXT."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", pair=f"{END_OF_TEXT} $A $B", special_tokens=[(END_OF_TEXT, 0)]
    )
    return tokenizer


def encode_with_cuts(tokenizer: Tokenizer, texts: list[str], cut_every: int | None) -> I32:
    """Encode texts with END_OF_TEXT before each, one after another, into windows (count, CONTEXT).

    A prompt may end in the middle of what would be one token ("def " before "def name"). Encoding the text in
    pieces of random length, on average `cut_every` characters, shows the model such seams. None: no seams.
    """
    rng = random.Random(SEED)
    ids = []
    for text in texts:
        pieces, begin = [], 0
        while begin < len(text):
            end = begin + rng.randint(1, 2 * cut_every) if cut_every else len(text)
            pieces.append(text[begin:end])
            begin = end
        ids.append(0)
        for encoding in tokenizer.encode_batch(pieces, add_special_tokens=False):
            ids.extend(encoding.ids)
    return np.array(ids[: len(ids) // CONTEXT * CONTEXT], np.int32).reshape(-1, CONTEXT)


# ------------------------------------------------------------------------------------------------ training


class LlamaTask(DistillationTask):
    """What adds to the residual stream starts smaller, so that its variance does not grow with depth."""

    def model(self) -> nn.Module:
        made = super().model()
        for name, weight in made.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * self.config.num_hidden_layers))
        return made


def train(
    folder: Path,
    sizes: dict[str, int],
    target: FrozenTarget | None,
    windows: Windows,
    steps: int,
    peak: float,
    work: Path,
) -> None:
    """Train a Llama on text, or with a target on its distributions, unless it is there; `work` keeps the state."""
    if (folder / "model.safetensors").exists():
        return
    config = LlamaConfig(**COMMON | sizes)
    torch.manual_seed(SEED)
    # without a target nothing asks for one
    task = LlamaTask(config, cast("FrozenTarget", target), work, "kl" if target else "text", torch.bfloat16)
    stage = TrainingStage(folder.name, windows, steps, BATCH, peak, peak / 50)
    process = Accelerator(cpu=True, mixed_precision="bf16")
    made = fit(task, task.model(), [stage], work / folder.name, SEED, repr(sizes), process, on_step=show)
    assert made is not None
    folder.mkdir(parents=True, exist_ok=True)
    task.write(made, folder)  # and the tokenizer, which is in `work`


def show(report: StepReport) -> None:
    if report.step % 100 == 99 or report.step + 1 == report.num_steps:
        print(f"{report.stage} step {report.step + 1}/{report.num_steps} loss {report.loss:.3f}", flush=True)


@torch.no_grad()
def measure(target: nn.Module, draft: nn.Module, ids: Tensor) -> dict[str, float]:
    """Losses (nats a token) and greedy agreement on held-out text, in windows (count, length)."""
    logits = {"target": target(ids).logits[:, :-1], "draft": draft(ids).logits[:, :-1]}
    choices = {name: x.argmax(-1) for name, x in logits.items()}
    figures = {f"{name}_loss": hard_target_loss(x, ids[:, 1:]).item() for name, x in logits.items()}
    figures |= {f"{name}_accuracy": (x == ids[:, 1:]).double().mean().item() for name, x in choices.items()}
    return figures | {"greedy_agreement": (choices["target"] == choices["draft"]).double().mean().item()}


def main(
    out: Annotated[Path, typer.Option(help="where the two folders go")] = HERE / "models",
    work: Annotated[Path, typer.Option(help="for checkpoints")] = HERE.parent / "build/tiny_pair",
    threads: int = 2,
    target_steps: int = 2000,
    draft_steps: int = 800,
) -> None:
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    texts, held_out_texts = read_library()
    tokenizer = train_tokenizer(texts)
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "model_max_length": MAX_POSITIONS}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(work)
    windows, held_out = encode_with_cuts(tokenizer, texts, CUT_EVERY), encode_with_cuts(tokenizer, held_out_texts, None)
    print(f"{len(texts)} files, {windows.size} tokens; held out {len(held_out_texts)}, {held_out.size} tokens")
    pair = out / "pylib-1.5m", out / "pylib-0.2m"
    train(pair[0], TARGET_SIZES, None, Windows(windows), target_steps, 3e-3, work)
    target = FrozenTarget(pair[0], torch.device("cpu"))  # the draft learns from the weights that are shipped
    train(pair[1], DRAFT_SIZES, target, Windows(windows), draft_steps, 4e-3, work)
    draft = FrozenTarget(pair[1], torch.device("cpu"))
    print(json.dumps(measure(target.model, draft.model, torch.from_numpy(held_out).long())))


if __name__ == "__main__":
    typer.run(main)
