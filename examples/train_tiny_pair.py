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
    2. train the tokenizer on the others               5. round to BF16, write both folders
    3. train the target                                6. measure loss and agreement on the held-out files

A draft is worth the tokens on which it agrees with its target, not its own loss. That is why step 4 copies
distributions: a wrong guess that the target shares is a good guess.

Needs torch and transformers; about 40 minutes on 2 free CPU cores.

    python examples/train_tiny_pair.py                     # writes examples/models, can be killed and run again
    python examples/train_tiny_pair.py --target-steps 20 --draft-steps 20 --out /tmp/pair --work /tmp/pair_work
"""

import argparse
import json
import math
import random
import sysconfig
import time
import tokenize
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 2024
VOCAB_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"  # token 0: begins a text, ends it, and separates two files
MAX_POSITIONS = 512
CONTEXT = 256  # training window in tokens; RoPE is only trained up to here
BATCH = 32
HOLD_OUT_EVERY = 50  # files
CUT_EVERY = 300  # characters, see encode_with_cuts

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


def encode_with_cuts(tokenizer: Tokenizer, texts: list[str], cut_every: int | None) -> Tensor:
    """Encode texts into one stream, (num_tokens,) int64, with END_OF_TEXT before each.

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
    return torch.tensor(ids)


# --------------------------------------------------------------------------------------------------- model


def llama(hidden_size: int, intermediate_size: int, layers: int, heads: int, key_value_heads: int) -> LlamaForCausalLM:
    """A model of random weights, whose embedding is also its output head."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        rms_norm_eps=1e-5,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        # what adds to the residual stream starts smaller, so that its variance does not grow with depth
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))
    return model


# ------------------------------------------------------------------------------------------------ training


def train(
    name: str,
    model: LlamaForCausalLM,
    stream: Tensor,
    steps: int,
    peak: float,
    loss_of: Callable[[Tensor], Tensor],
    work: Path,
) -> None:
    """AdamW with warm-up and cosine decay. Step i draws its batch from seed i, so a resumed run is the same run."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))
    checkpoint, first = work / f"{name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    warm_up, begin = max(1, min(100, steps // 10)), time.monotonic()
    for step in range(first, steps):
        cosine = 0.5 * (1 + math.cos(math.pi * max(0, step - warm_up) / (steps - warm_up)))
        for group in optimizer.param_groups:
            group["lr"] = peak * min((step + 1) / warm_up, 0.02 + 0.98 * cosine)
        rng = torch.Generator().manual_seed(SEED * 1_000_000 + step)
        starts = torch.randint(len(stream) - CONTEXT, (BATCH, 1), generator=rng)
        windows = stream[starts + torch.arange(CONTEXT + 1)]  # (BATCH, CONTEXT + 1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(windows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)  # a kill leaves the old file or the new one
            seconds = (time.monotonic() - begin) / (step + 1 - first)
            print(f"{name} step {step + 1}/{steps} loss {loss.item():.3f} {seconds:.2f} s/step", flush=True)


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


def kl_divergence(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """KL(target || draft) in nats a token: how far the draft's distribution is from the target's."""
    draft, target = (x.float().flatten(0, 1).log_softmax(-1) for x in (draft_logits, target_logits))
    return F.kl_div(draft, target, reduction="batchmean", log_target=True)


# ------------------------------------------------------------------------------------- writing and measuring


def write_folder(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer in the Hugging Face folder layout, in BF16. The tied head is not stored."""
    model.to(torch.bfloat16).save_pretrained(folder)
    special = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "model_max_length": MAX_POSITIONS}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


@torch.no_grad()
def measure(target: LlamaForCausalLM, draft: LlamaForCausalLM, stream: Tensor) -> dict[str, float]:
    """Losses (nats a token) and greedy agreement on held-out text, in non-overlapping windows."""
    count = (len(stream) - 1) // CONTEXT
    ids = stream[: count * CONTEXT].view(count, CONTEXT)
    next_ids = stream[1 : count * CONTEXT + 1].view(count, CONTEXT)
    logits = {"target": target(ids).logits, "draft": draft(ids).logits}
    choices = {name: x.argmax(-1) for name, x in logits.items()}
    figures = {f"{name}_loss": cross_entropy(x, next_ids).item() for name, x in logits.items()}
    figures |= {f"{name}_accuracy": (x == next_ids).double().mean().item() for name, x in choices.items()}
    return figures | {"greedy_agreement": (choices["target"] == choices["draft"]).double().mean().item()}


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Train the embedded model pair.")
    parser.add_argument("--out", type=Path, default=here / "models", help="where the two folders go")
    parser.add_argument("--work", type=Path, default=here.parent / "build/tiny_pair", help="for checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target-steps", type=int, default=2000)
    parser.add_argument("--draft-steps", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)

    texts, held_out_texts = read_library()
    tokenizer = train_tokenizer(texts)
    stream = encode_with_cuts(tokenizer, texts, CUT_EVERY)
    held_out = encode_with_cuts(tokenizer, held_out_texts, None)
    print(f"{len(texts)} files, {len(stream)} tokens; held out {len(held_out_texts)}, {len(held_out)} tokens")

    torch.manual_seed(SEED)
    target, draft = llama(128, 448, 6, 8, 4), llama(64, 192, 3, 4, 2)
    for name, model in (("target", target), ("draft", draft)):
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)

    def target_loss(windows: Tensor) -> Tensor:
        return cross_entropy(target(windows[:, :-1]).logits, windows[:, 1:])

    def draft_loss(windows: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(windows[:, :-1]).logits
        return kl_divergence(draft(windows[:, :-1]).logits, wanted)

    train("target", target, stream, args.target_steps, 3e-3, target_loss, args.work)
    target.to(torch.bfloat16).float()  # the draft learns from the weights that are shipped
    train("draft", draft, stream, args.draft_steps, 4e-3, draft_loss, args.work)
    draft.to(torch.bfloat16).float()
    print(json.dumps(measure(target, draft, held_out)))
    write_folder(args.out / "pylib-1.5m", target, tokenizer)
    write_folder(args.out / "pylib-0.2m", draft, tokenizer)


if __name__ == "__main__":
    main()
