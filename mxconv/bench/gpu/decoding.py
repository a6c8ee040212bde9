"""Whole decodes in transformers on a GPU: the model in 16 bits, in BSFP, and in BSFP with its 4-bit self-draft.

One model at a time is on the device, so that each has its own peak of memory: first the checkpoint's, which is let go,
then the package's, with drafts and without in turns, prompt by prompt. Passes are replays of CUDA graphs; those of the
checkpoint are also launched by transformers, one kernel after the other. Read bandwidth is sampled before and behind
each text. Tokens may differ where two are almost equally likely (docs/gpu.md): the first that does is reported with
both margins, and is no error.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from mxconv.bench.gpu.decode_result import Decoded, GpuDecodeResult, summarize
from mxconv.bench.gpu.machine import cache_bytes
from mxconv.bench.gpu.memory import Memory
from mxconv.bench.gpu.read_bandwidth import ReadBandwidth
from mxconv.bench.gpu.recorded_text import RecordedText, record_text
from mxconv.bench.gpu.traffic import bytes_per_pass
from mxconv.bench.prompts import prompt_ids
from mxconv.errors import ModelError
from mxconv.gpu.memory import require_room
from mxconv.interop.transformers.drafts import Drafts
from mxconv.interop.transformers.gpu.load_package import load_package
from mxconv.interop.transformers.graphs.graphed import Graphed
from mxconv.package.manifest import read_manifest
from mxconv.package.package_folder import find_package
from mxconv.progress import Progress, silent
from mxconv.text.messages import Prompt
from mxconv.text.tokenizer import Tokenizer

LAUNCHED, PLAIN, TARGET, DRAFTED = "16-bit launched", "16-bit", "bsfp", "bsfp + draft"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}
CACHE_MULTIPLE = 4  # the array that is read, in L2 caches
NUM_READS = 8  # of a sample of bandwidth; together they read that array twice


def bench_gpu_decoding(
    package: str | Path,
    source: str | None,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    device: torch.device,
    progress: Progress = silent,
) -> list[GpuDecodeResult]:
    """Decode every prompt with every strategy.

    Args:
        package: a BSFP package: a folder, or a Hub id.
        source: its 16-bit checkpoint for transformers, a folder or a Hub id; None for what the manifest names.
        prompts: texts, or messages.
        max_new_tokens: a prompt.
        device: a GPU, or the CPU in Triton's interpreter.
        progress: told about every text.

    Raises:
        MxconvError: transformers is missing or cannot load the checkpoint, the package is none of BSFP or of another
            model, there is too little memory, or a prompt has no tokens.
    """
    root = find_package(package)
    manifest = read_manifest(root)
    if manifest.options.codec != "bsfp":
        raise ModelError(
            f"{root}: an {manifest.options.codec} package; a BSFP package is required, which is target and draft. "
            "Convert with --codec bsfp."
        )
    checkpoint, dtype = source or manifest.source.id, DTYPES[manifest.source.dtype]
    ids = prompt_ids(Tokenizer.from_folder(root), root, prompts)
    array_bytes = CACHE_MULTIPLE * cache_bytes(device)
    read = ReadBandwidth(device, array_bytes).of(2 * array_bytes // NUM_READS, NUM_READS)
    memory = Memory(device)
    total, done = 4 * len(ids), 0

    def texts_of(model: Any, turns: dict[str, Drafts | Graphed | None]) -> dict[str, list[RecordedText]]:
        nonlocal done
        found: dict[str, list[RecordedText]] = {name: [] for name in turns}
        for prompt in ids:
            for name, own in turns.items():
                progress("decode", done, total)
                found[name].append(record_text(model, prompt, max_new_tokens, own, read, memory))
                done += 1
        return found

    memory.begin()
    model = _on_host(checkpoint, dtype)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    require_room(device, num_bytes, checkpoint, "It is measured beside the package. Take a smaller model.")
    model.to(device)
    loading = memory.peak_bytes()
    with Graphed() as replayed:
        found = texts_of(model, {LAUNCHED: None, PLAIN: replayed})
    launched, plain = (Decoded(name, found[name], bytes_per_pass(model), 0, loading) for name in (LAUNCHED, PLAIN))
    del model, replayed
    memory.release()
    memory.begin()
    model = _on_host(checkpoint, dtype)
    load_package(model, root, device)
    loading = memory.peak_bytes()
    with Graphed() as replayed, Drafts(root, device=device) as own:
        found = texts_of(model, {TARGET: replayed, DRAFTED: own})
    target = Decoded(TARGET, found[TARGET], bytes_per_pass(model), 0, loading)
    drafted = Decoded(DRAFTED, found[DRAFTED], target.target_bytes, bytes_per_pass(model, is_draft=True), loading)
    progress("decode", total, total)
    strategies = (launched, launched), (plain, plain), (target, target), (drafted, target)
    return [summarize(mine, plain, same) for mine, same in strategies]


def _on_host(checkpoint: str, dtype: torch.dtype) -> Any:
    if find_spec("transformers") is None:
        raise ModelError(
            "bench decode: transformers is not installed; it runs the models on a GPU. Install it: "
            "pip install 'mxconv[hf]'."
        )
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{checkpoint}: transformers cannot load it ({said}); the package's 16-bit checkpoint is required. Name "
            "it with --source."
        ) from error
    config = model.generation_config
    config.max_length = None  # transformers logs a line where both limits are set
    if config.pad_token_id is None:  # and one where nothing pads
        config.pad_token_id = 0
    return model
